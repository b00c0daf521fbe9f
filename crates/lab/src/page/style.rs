//! How the lines of a plot differ: colour, dash and marker.

/// The most lines that a chart can have: as many as there are styles.
pub const LINES_MAX: usize = 7;

/// The look of a line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Style {
    /// From the palette of Okabe and Ito, whose colours the colour-blind tell apart. Its yellow is
    /// left out: it is too light for a line on white.
    pub colour: &'static str,
    /// Lengths of strokes and gaps, in pixels; empty for a line without gaps.
    pub dash: &'static str,
    marker: Marker,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    TriangleDown,
    Cross,
    Plus,
}

/// In the order in which lines get them.
pub const STYLES: [Style; LINES_MAX] = [
    Style { colour: "#0072b2", dash: "", marker: Marker::Circle },
    Style { colour: "#d55e00", dash: "8 3", marker: Marker::Square },
    Style { colour: "#009e73", dash: "2 2", marker: Marker::Triangle },
    Style { colour: "#000000", dash: "9 3 2 3", marker: Marker::Diamond },
    Style { colour: "#cc79a7", dash: "14 4", marker: Marker::TriangleDown },
    Style { colour: "#e69f00", dash: "5 2 1 2", marker: Marker::Cross },
    Style { colour: "#56b4e9", dash: "4 4", marker: Marker::Plus },
];

impl Style {
    /// The attributes of a line.
    pub fn stroke(&self) -> String {
        let dash = if self.dash.is_empty() {
            String::new()
        } else {
            format!(" stroke-dasharray=\"{}\"", self.dash)
        };
        format!("fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{dash}", self.colour)
    }

    /// The marker around a point.
    pub fn marker(&self, (x, y): (f64, f64)) -> String {
        let colour = self.colour;
        let path = |corners: &[(f64, f64)], close: &str| {
            let mut path = String::new();
            for (i, (dx, dy)) in corners.iter().enumerate() {
                let verb = if i == 0 { "M" } else { " L" };
                path += &format!("{verb}{:.1} {:.1}", x + dx, y + dy);
            }
            path + close
        };
        let filled = |corners: &[(f64, f64)]| {
            format!("<path d=\"{}\" fill=\"{colour}\"/>\n", path(corners, " Z"))
        };
        let stroked = |a: &[(f64, f64)], b: &[(f64, f64)]| {
            let (a, b) = (path(a, " "), path(b, ""));
            format!("<path d=\"{a}{b}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"/>\n")
        };
        let r = 4.0;
        match self.marker {
            Marker::Circle => {
                format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>\n")
            }
            Marker::Square => filled(&[(-3.2, -3.2), (3.2, -3.2), (3.2, 3.2), (-3.2, 3.2)]),
            Marker::Triangle => filled(&[(0.0, -r), (r, 3.2), (-r, 3.2)]),
            Marker::Diamond => filled(&[(0.0, -4.6), (4.6, 0.0), (0.0, 4.6), (-4.6, 0.0)]),
            Marker::TriangleDown => filled(&[(0.0, r), (r, -3.2), (-r, -3.2)]),
            Marker::Cross => stroked(&[(-3.5, -3.5), (3.5, 3.5)], &[(-3.5, 3.5), (3.5, -3.5)]),
            Marker::Plus => stroked(&[(-r, 0.0), (r, 0.0)], &[(0.0, -r), (0.0, r)]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::STYLES;

    #[test]
    fn any_two_styles_differ_in_colour_dash_and_marker() {
        for (i, a) in STYLES.iter().enumerate() {
            for b in &STYLES[i + 1..] {
                assert_ne!(a.colour, b.colour);
                assert_ne!(a.dash, b.dash);
                assert_ne!(a.marker, b.marker);
            }
        }
    }
}
