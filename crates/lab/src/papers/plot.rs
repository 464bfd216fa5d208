//! Plots as SVG: lines for the simulation, dashes for the model, points for the paper's numbers.

use plotters::prelude::*;

/// Width and height of a plot in pixels.
const SIZE: (u32, u32) = (720, 420);
/// Radius of the paper's points in pixels: they are larger than the others.
const PAPER_POINT: u32 = 6;
/// Radius of all other points in pixels.
const POINT: u32 = 3;
/// Most numbers on an axis.
const LABELS: usize = 9;

/// Curves over one axis.
#[derive(Clone, PartialEq, Debug)]
pub struct Plot {
    /// The plot's name, used as a file name.
    pub name: &'static str,
    /// The plot's title.
    pub title: String,
    /// Label of the horizontal axis, which is logarithmic.
    pub x: &'static str,
    /// Label of the vertical axis.
    pub y: &'static str,
    /// Whether the vertical axis is logarithmic, too.
    pub log_y: bool,
    /// The curves.
    pub series: Vec<Series>,
}

/// A curve.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// The curve's name.
    pub name: String,
    /// Source of the numbers, which decides how they are drawn.
    pub points: Points,
    /// The points.
    pub at: Vec<(f64, f64)>,
}

/// Source of a curve's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Points {
    /// The simulation.
    Simulated,
    /// The model.
    Model,
    /// The paper, where its text names numbers.
    Paper,
}

impl Plot {
    /// The plot as SVG.
    pub fn svg(&self) -> String {
        let mut text = String::new();
        match self.draw(SVGBackend::with_string(&mut text, SIZE)) {
            Ok(()) => text,
            Err(e) => panic!("an image in memory cannot fail: {e}"),
        }
    }

    /// Draws the plot in a plane where logarithmic axes are straight.
    fn draw(
        &self,
        backend: SVGBackend<'_>,
    ) -> Result<(), DrawingAreaErrorKind<impl std::error::Error + Send + Sync + use<>>> {
        let up = |y: f64| if self.log_y { y.max(1e-9).log2() } else { y };
        let plane = |&(x, y): &(f64, f64)| (x.max(1e-9).log2(), up(y));
        let all: Vec<(f64, f64)> = self.series.iter().flat_map(|s| &s.at).map(plane).collect();
        let (left, right) = bounds(all.iter().map(|p| p.0));
        let (low, high) = bounds(all.iter().map(|p| p.1));
        let low = if self.log_y { low } else { low.min(0.0) };
        let area = backend.into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(58)
            .build_cartesian_2d(left..right, low..high)?;
        let number = |v: f64| match v {
            v if v >= 10_000.0 => format!("{:.0}k", v / 1000.0),
            v if v >= 10.0 || v == v.round() => format!("{v:.0}"),
            v => format!("{v:.1}"),
        };
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_desc(self.x)
            .y_desc(self.y)
            .x_labels(LABELS)
            .y_labels(LABELS)
            .x_label_formatter(&|x| match (x - x.round()).abs() < 1e-6 {
                true => number(x.exp2()),
                false => String::new(),
            })
            .y_label_formatter(&|y| number(if self.log_y { y.exp2() } else { *y }))
            .draw()?;
        for (i, s) in self.series.iter().enumerate() {
            let color = Palette99::pick(i).to_rgba();
            let at: Vec<(f64, f64)> = s.at.iter().map(plane).collect();
            let key = move |(x, y): (i32, i32)| {
                let to = (x + 18, y);
                PathElement::new(vec![(x, y), to], color.stroke_width(2))
            };
            let style = color.stroke_width(2);
            match s.points {
                Points::Simulated => {
                    chart
                        .draw_series(LineSeries::new(at.clone(), style).point_size(POINT))?
                        .label(&s.name)
                        .legend(key);
                }
                Points::Model => {
                    chart
                        .draw_series(DashedLineSeries::new(at, 6, 4, color.stroke_width(1)))?
                        .label(&s.name)
                        .legend(key);
                }
                Points::Paper => {
                    let point = |&p: &(f64, f64)| Circle::new(p, PAPER_POINT, BLACK.filled());
                    chart
                        .draw_series(at.iter().map(point))?
                        .label(&s.name)
                        .legend(|(x, y)| Circle::new((x + 9, y), PAPER_POINT, BLACK.filled()));
                }
            }
        }
        // The legend stands where the curves are not.
        let first = self.series.first().map_or(&[][..], |s| &s.at);
        let falls = first.first().map(|p| p.1) > first.last().map(|p| p.1);
        let corner = match falls {
            true => SeriesLabelPosition::UpperRight,
            false => SeriesLabelPosition::UpperLeft,
        };
        chart
            .configure_series_labels()
            .position(corner)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()
    }
}

/// Makes a curve.
pub(super) fn curve(
    name: impl Into<String>,
    points: Points,
    at: impl IntoIterator<Item = (f64, f64)>,
) -> Series {
    Series {
        name: name.into(),
        points,
        at: at.into_iter().collect(),
    }
}

/// Column `i` of a table's rows, as points over the rows' items.
pub(super) fn column<const N: usize>(of: &[u64], rows: &[[f64; N]], i: usize) -> Vec<(f64, f64)> {
    let rows = of.iter().zip(rows);
    rows.map(|(&of, row)| (of as f64, row[i])).collect()
}

/// The least and the greatest value, moved a little apart.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let start = (f64::INFINITY, f64::NEG_INFINITY);
    let (low, high) = values.fold(start, |(a, b), v| (a.min(v), b.max(v)));
    let room = ((high - low) * 0.06).max(0.1);
    (low - room, high + room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_plotted_is_in_the_image() {
        let series = |name: &str, points| Series {
            name: name.into(),
            points,
            at: vec![(4.0, 1.0), (1024.0, 300.0)],
        };
        let mut plot = Plot {
            name: "test",
            title: "A < B".into(),
            x: "bytes",
            y: "µs",
            log_y: true,
            series: vec![
                series("window", Points::Simulated),
                series("its model", Points::Model),
                series("the paper", Points::Paper),
            ],
        };
        for log_y in [true, false] {
            plot.log_y = log_y;
            let svg = plot.svg();
            for part in [
                "<svg",
                "</svg>",
                "window",
                "its model",
                "the paper",
                "A &lt; B",
                "µs",
            ] {
                assert!(svg.contains(part), "no {part} in {svg}");
            }
            assert!(svg.matches("<circle").count() >= 4, "{svg}");
        }
    }
}
