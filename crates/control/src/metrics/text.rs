//! Families of metrics as text: in Prometheus' own format, and in that of OpenMetrics.
//!
//! `prometheus-client` writes OpenMetrics. Prometheus' older format names a counter with its ending
//! in its description, too, and has no line at the end.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::{Family, Kind, Sample};

/// A format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `text/plain; version=0.0.4`
    Prometheus,
    /// `application/openmetrics-text; version=1.0.0`
    OpenMetrics,
}

impl Format {
    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The families as text.
pub fn write(families: Vec<Family>, format: Format) -> String {
    let counters: Vec<String> = (families.iter())
        .filter(|family| family.kind == Kind::Counter)
        .map(|family| family.name.clone())
        .collect();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Families(families)));
    let mut written = String::new();
    text::encode(&mut written, &registry).expect("a string takes all that is written");
    match format {
        Format::OpenMetrics => written,
        Format::Prometheus => written.lines().map(|line| older(line, &counters)).collect(),
    }
}

/// A line of OpenMetrics in Prometheus' format.
fn older(line: &str, counters: &[String]) -> String {
    let Some(described) = line.strip_prefix("# ") else { return format!("{line}\n") };
    let mut words = described.splitn(3, ' ');
    match (words.next(), words.next(), words.next()) {
        (Some(what @ ("HELP" | "TYPE")), Some(name), Some(rest)) => {
            let ending = if counters.iter().any(|it| it == name) { "_total" } else { "" };
            format!("# {what} {name}{ending} {rest}\n")
        }
        _ => String::new(),
    }
}

#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for Family { name, help, kind, samples } in &self.0 {
            let kind = match kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, sample) in samples {
                let mut metric = family.encode_family(labels)?;
                match (sample, kind) {
                    (Sample::Number(value), MetricType::Counter) => {
                        metric.encode_counter::<Vec<super::Label>, _, u64>(value, None)?;
                    }
                    (Sample::Number(value), _) => metric.encode_gauge(value)?,
                    (Sample::Seconds(value), _) => {
                        metric.encode_counter::<Vec<super::Label>, _, u64>(value, None)?;
                    }
                    (Sample::Times { sum, count, buckets }, _) => {
                        metric
                            .encode_histogram::<Vec<super::Label>>(*sum, *count, buckets, None)?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Format, write};
    use crate::metrics::{Family, Kind, Sample};

    fn families() -> Vec<Family> {
        let labels = |name: &str| vec![("device", name.to_owned())];
        let family = |name: &str, kind, samples| {
            let (name, help) = (name.to_owned(), "What it is".to_owned());
            Family { name, help, kind, samples }
        };
        let times =
            Sample::Times { sum: 1.5, count: 3, buckets: vec![(0.5, 2), (f64::INFINITY, 1)] };
        vec![
            family("a_bytes", Kind::Counter, vec![(labels("v\"m\\\n"), Sample::Number(7))]),
            family("b", Kind::Gauge, vec![(Vec::new(), Sample::Number(u64::MAX))]),
            family("c_seconds", Kind::Histogram, vec![(labels("vm"), times)]),
        ]
    }

    #[test]
    fn both_formats_have_the_same_values() {
        let values = "c_seconds_sum{device=\"vm\"} 1.5\nc_seconds_count{device=\"vm\"} 3\n\
                      c_seconds_bucket{le=\"0.5\",device=\"vm\"} 2\n\
                      c_seconds_bucket{le=\"+Inf\",device=\"vm\"} 3\n";
        let expected = format!(
            "# HELP a_bytes_total What it is\n# TYPE a_bytes_total counter\n\
             a_bytes_total{{device=\"v\\\"m\\\\\\n\"}} 7\n\
             # HELP b What it is\n# TYPE b gauge\nb{{}} 18446744073709551615\n\
             # HELP c_seconds What it is\n# TYPE c_seconds histogram\n{values}"
        );
        assert_eq!(write(families(), Format::Prometheus), expected);
        let newer = expected.replace("HELP a_bytes_total", "HELP a_bytes");
        let newer = newer.replace("TYPE a_bytes_total", "TYPE a_bytes");
        assert_eq!(write(families(), Format::OpenMetrics), format!("{newer}# EOF\n"));
    }
}
