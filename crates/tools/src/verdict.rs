//! What a check finds on a device, as text and as JSON.

use cairn_format::Severity;
use serde_json::{Value, json};

/// What a check found on a device.
pub struct Verdict {
    /// The format's name; `None`: not a format that the tools read, as the one finding says.
    pub format: Option<&'static str>,
    /// The worst finding.
    pub severity: Severity,
    /// The findings, each with how bad it is.
    pub findings: Vec<(Severity, String)>,
    /// Findings beyond those.
    pub findings_left_out: u64,
    /// The counts in words, if there are any.
    pub summary: Option<String>,
    /// What else was asked for, a line each.
    pub lines: Vec<String>,
    /// The header and the counts, under names of the format.
    pub facts: Value,
}

impl Verdict {
    /// The findings, one per line, then the verdict. For an unknown format one line says all.
    pub fn text(&self, device: &str) -> String {
        if self.format.is_none() {
            return self.findings.iter().map(|(_, line)| format!("{device}: {line}\n")).collect();
        }
        let mut text = findings_text(device, &self.findings, self.findings_left_out);
        text.push_str(&format!("{device}: {}", self.severity));
        if let Some(summary) = &self.summary {
            text.push_str(&format!(": {summary}"));
        }
        text.push('\n');
        self.lines.iter().for_each(|line| text.push_str(&format!("{device}: {line}\n")));
        text
    }

    /// The same with stable field names.
    pub fn json(&self, device: &str) -> Value {
        let mut value = json!({
            "device": device,
            "format": self.format.unwrap_or("unknown"),
            "severity": self.severity.to_string(),
            "exit_code": self.severity.exit_code(),
            "findings": findings_json(&self.findings),
            "findings_left_out": self.findings_left_out,
        });
        if let (Value::Object(value), Value::Object(facts)) = (&mut value, self.facts.clone()) {
            value.extend(facts);
        }
        value
    }
}

/// Findings, one per line.
pub fn findings_text(device: &str, findings: &[(Severity, String)], left_out: u64) -> String {
    let lines = findings.iter().map(|(severity, line)| format!("{device}: {line} [{severity}]\n"));
    let mut text: String = lines.collect();
    if left_out > 0 {
        text.push_str(&format!("{device}: {left_out} more findings\n"));
    }
    text
}

/// Findings with stable field names.
pub fn findings_json(findings: &[(Severity, String)]) -> Value {
    let finding = |(severity, text): &(Severity, String)| {
        let severity = severity.to_string();
        json!({ "severity": severity, "text": text })
    };
    findings.iter().map(finding).collect()
}
