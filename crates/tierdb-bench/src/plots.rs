//! Plots of a report, as SVG and PNG: throughput as bars, latencies as distributions, throughput over time.
//!
//! Each says below what it was measured on, so that a plot alone is not taken for something else.

use crate::failure::Failure;
use crate::phase::Measured;
use crate::report::Report;
use crate::table;
use crate::workload::Op;
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::register_font;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Once;

const WIDTH: u32 = 1200;
const PLOT_HEIGHT: u32 = 640;
const NOTE_HEIGHT: u32 = 17;
/// Characters that fit into a line of notes.
const NOTE_CHARACTERS: usize = 220;
const FONT: &str = "sans-serif";
/// Colours that are told apart also by those who see fewer of them (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(160, 150, 40),
];

/// Several figures under one name.
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points; of bars, the number of the group, and how high the bar is.
    pub points: Vec<(f64, f64)>,
}

/// How series are shown.
pub enum Shape {
    /// As bars in groups of these names.
    Bars(Vec<String>),
    /// As lines.
    Lines {
        /// The name of the horizontal axis.
        across: String,
        /// Whether that axis is logarithmic.
        logarithmic: bool,
    },
}

/// A plot.
pub struct Plot {
    /// The file's name without its ending.
    pub file: String,
    /// Its title.
    pub title: String,
    /// The name of the vertical axis.
    pub up: String,
    /// How it is shown.
    pub shape: Shape,
    /// What is shown.
    pub series: Vec<Series>,
}

/// Draws the plots of `report` into `dir`, which is made if it is absent.
///
/// # Errors
/// `Io` where a file cannot be written.
pub fn draw(report: &Report, dir: &Path) -> Result<(), Failure> {
    let notes = table::notes(report);
    let phases = phase_names(report);
    write(dir, &throughput(report, &phases), &notes)?;
    for phase in &phases {
        for plot in [latencies(report, phase), over_time(report, phase)] {
            if !plot.series.is_empty() {
                write(dir, &plot, &notes)?;
            }
        }
    }
    Ok(())
}

/// The names of all phases, each once, in their order.
fn phase_names(report: &Report) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for phase in report.cases.iter().flat_map(|case| &case.first().phases) {
        if !names.contains(&phase.name) {
            names.push(phase.name.clone());
        }
    }
    names
}

fn throughput(report: &Report, phases: &[String]) -> Plot {
    let series = report.cases.iter().map(|case| {
        let rate = |name: &String| {
            let index = case.first().phases.iter().position(|phase| phase.name == *name)?;
            case.phase(index, |phase| Some(phase.rate / 1e3))
        };
        Series { name: case.name(), points: bars(phases.iter().map(|name| Some(rate(name)?.median))) }
    });
    Plot {
        file: "throughput".to_owned(),
        title: format!("Throughput: {}", report.title),
        up: "thousand operations a second".to_owned(),
        shape: Shape::Bars(phases.to_vec()),
        series: series.collect(),
    }
}

/// The bars of a series: none stands for what was not measured.
pub fn bars(heights: impl Iterator<Item = Option<f64>>) -> Vec<(f64, f64)> {
    heights.enumerate().filter_map(|(group, height)| Some((group as f64, height?))).collect()
}

fn latencies(report: &Report, name: &str) -> Plot {
    let mut series = Vec::new();
    for case in &report.cases {
        let Some(phase) = case.first().phases.iter().find(|phase| phase.name == name) else { continue };
        for latency in &phase.latencies {
            let op = if phase.latencies.len() > 1 || latency.op != Op::Read {
                format!(": {}", latency.op.name())
            } else {
                String::new()
            };
            let points = latency.cdf.iter().map(|(us, share)| (us.max(0.01), *share));
            series.push(Series { name: case.name() + &op, points: points.collect() });
        }
    }
    Plot {
        file: format!("latency-{}", file_name(name)),
        title: format!("Share of operations that took at most so long: {name}"),
        up: "share of operations".to_owned(),
        shape: Shape::Lines { across: "microseconds".to_owned(), logarithmic: true },
        series,
    }
}

fn over_time(report: &Report, name: &str) -> Plot {
    let mut series = Vec::new();
    for case in &report.cases {
        let Some(phase) = case.first().phases.iter().find(|phase| phase.name == name) else { continue };
        series.extend(timeline(phase).map(|points| Series { name: case.name(), points }));
    }
    Plot {
        file: format!("time-{}", file_name(name)),
        title: format!("Throughput over time: {name}"),
        up: "thousand operations a second".to_owned(),
        shape: Shape::Lines { across: "seconds".to_owned(), logarithmic: false },
        series,
    }
}

/// Thousands of operations a second in each interval of `phase`, if it was long enough to have several.
pub fn timeline(phase: &Measured) -> Option<Vec<(f64, f64)>> {
    let points = phase.timeline.iter().map(|(seconds, rate)| (*seconds, rate / 1e3));
    (phase.timeline.len() > 1).then(|| points.collect())
}

fn file_name(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

/// Writes `plot` into `dir`, with `notes` below it, as SVG.
///
/// # Errors
/// `Io` where a file cannot be written.
pub fn write_svg(dir: &Path, plot: &Plot, notes: &[String]) -> Result<(), Failure> {
    let notes = &wrapped(notes);
    static FONT_ONCE: Once = Once::new();
    FONT_ONCE.call_once(|| {
        // Were the font unreadable, drawing the first text would fail and say so.
        let _ = register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT);
    });
    std::fs::create_dir_all(dir).map_err(|e| Failure::io("cannot make the directory", dir, e))?;
    let svg = dir.join(format!("{}.svg", plot.file));
    let mut text = String::new();
    let drawn = plot.draw_on(&SVGBackend::with_string(&mut text, size(notes)).into_drawing_area(), notes);
    drawn.map_err(|e| Failure::io("cannot draw", &svg, std::io::Error::other(e.to_string())))?;
    std::fs::write(&svg, text).map_err(|e| Failure::io("cannot write", &svg, e))
}

/// `notes` in lines that the plot is wide enough for.
fn wrapped(notes: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for note in notes {
        let mut line = String::new();
        for word in note.split(' ') {
            if !line.is_empty() && line.len() + word.len() > NOTE_CHARACTERS {
                lines.push(std::mem::replace(&mut line, "   ".to_owned()));
            }
            line.extend((!line.is_empty()).then_some(' '));
            line.push_str(word);
        }
        lines.push(line);
    }
    lines
}

fn size(notes: &[String]) -> (u32, u32) {
    (WIDTH, PLOT_HEIGHT + NOTE_HEIGHT * (notes.len() as u32 + 1))
}

/// The same, as SVG and as PNG.
///
/// # Errors
/// As [`write_svg`].
pub fn write(dir: &Path, plot: &Plot, notes: &[String]) -> Result<(), Failure> {
    write_svg(dir, plot, notes)?;
    let notes = &wrapped(notes);
    let size = size(notes);
    let path = dir.join(format!("{}.png", plot.file));
    let mut pixels = vec![0; (size.0 * size.1 * 3) as usize];
    let drawn = plot.draw_on(&BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area(), notes);
    drawn.map_err(|e| Failure::io("cannot draw", &path, std::io::Error::other(e.to_string())))?;
    let file = File::create(&path).map_err(|e| Failure::io("cannot write", &path, e))?;
    let mut encoder = png::Encoder::new(BufWriter::new(file), size.0, size.1);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let written = encoder.write_header().and_then(|mut header| {
        header.write_image_data(&pixels)?;
        header.finish()
    });
    written.map_err(|e| Failure::io("cannot write", &path, std::io::Error::other(e)))
}

type Drawn<DB> = Result<(), DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>>;

impl Plot {
    fn draw_on<DB: DrawingBackend>(&self, root: &DrawingArea<DB, Shift>, notes: &[String]) -> Drawn<DB> {
        root.fill(&WHITE)?;
        let (area, below) = root.split_vertically(PLOT_HEIGHT);
        match &self.shape {
            Shape::Bars(groups) => self.draw_bars(&area, groups)?,
            Shape::Lines { across, logarithmic } => self.draw_lines(&area, across, *logarithmic)?,
        }
        for (line, note) in (0..).zip(notes) {
            below.draw(&Text::new(note.clone(), (20, line * NOTE_HEIGHT as i32), (FONT, 13)))?;
        }
        root.present()
    }

    fn extent(&self, axis: impl Fn(&(f64, f64)) -> f64) -> (f64, f64) {
        let all = self.series.iter().flat_map(|series| &series.points).map(axis);
        all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)))
    }

    fn draw_bars<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>, groups: &[String]) -> Drawn<DB> {
        let most = self.extent(|point| point.1).1.max(1e-9) * 1.12;
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, 22))
            .margin(15)
            .x_label_area_size(35)
            .y_label_area_size(80)
            .build_cartesian_2d(0.0..groups.len().max(1) as f64, 0.0..most)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(0)
            .y_desc(&self.up)
            .axis_desc_style((FONT, 16))
            .label_style((FONT, 14))
            .draw()?;
        let wide = 0.86 / self.series.len().max(1) as f64;
        for (number, series) in self.series.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let bars = series.points.iter().map(|(group, value)| {
                let left = group + 0.07 + wide * number as f64;
                Rectangle::new([(left, 0.0), (left + wide * 0.94, *value)], colour.filled())
            });
            chart
                .draw_series(bars)?
                .label(&series.name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 16, y + 5)], colour.filled()));
        }
        let centred = |size: u32| (FONT, size).into_text_style(area).pos(Pos::new(HPos::Center, VPos::Top));
        let (offset, _) = area.get_base_pixel();
        for (group, name) in groups.iter().enumerate() {
            let (x, y) = chart.backend_coord(&(group as f64 + 0.5, 0.0));
            area.draw(&Text::new(name.clone(), (x - offset, y + 8), centred(16)))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font((FONT, 14))
            .draw()
    }

    fn draw_lines<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        across: &str,
        logarithmic: bool,
    ) -> Drawn<DB> {
        let (left, right) = self.extent(|point| point.0);
        let most = self.extent(|point| point.1).1.max(1e-9) * 1.05;
        // A logarithmic axis is drawn of logarithms, with labels that say what they are of.
        let scale = move |x: f64| if logarithmic { x.max(1e-9).log10() } else { x };
        let left = if logarithmic { scale(left).floor() } else { 0.0 };
        let right = if logarithmic { scale(right).ceil().max(left + 1.0) } else { right.max(1e-9) };
        let mut chart = ChartBuilder::on(area)
            .caption(&self.title, (FONT, 22))
            .margin(15)
            .x_label_area_size(50)
            .y_label_area_size(80)
            .build_cartesian_2d(left..right, 0.0..most)?;
        let label = move |x: &f64| {
            let x = if logarithmic { 10_f64.powf(*x) } else { *x };
            if x >= 1000.0 {
                table::grouped(x.round() as u64)
            } else {
                format!("{}", (x * 100.0).round() / 100.0)
            }
        };
        chart
            .configure_mesh()
            .x_desc(across)
            .y_desc(&self.up)
            .x_labels(if logarithmic { (right - left) as usize + 1 } else { 10 })
            .x_label_formatter(&label)
            .axis_desc_style((FONT, 16))
            .label_style((FONT, 14))
            .light_line_style(WHITE)
            .draw()?;
        for (number, series) in self.series.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let points = series.points.iter().map(|(x, y)| (scale(*x), *y));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))?
                .label(&series.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(3)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font((FONT, 14))
            .draw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bar_stands_for_what_was_not_measured() {
        assert_eq!(bars([Some(2.0), None, Some(0.5)].into_iter()), [(0.0, 2.0), (2.0, 0.5)]);
        let plot = |points| Plot {
            file: String::new(),
            title: String::new(),
            up: String::new(),
            shape: Shape::Bars(["a", "b", "c"].map(str::to_owned).to_vec()),
            series: vec![Series { name: "one".to_owned(), points }],
        };
        let drawn = |points| {
            let dir = tempfile::tempdir().expect("temporary directory");
            write_svg(dir.path(), &plot(points), &[]).expect("SVG");
            std::fs::read_to_string(dir.path().join(".svg")).expect("SVG")
        };
        let (all, but_b) =
            (drawn(vec![(0.0, 2.0), (1.0, 1.0), (2.0, 0.5)]), drawn(vec![(0.0, 2.0), (2.0, 0.5)]));
        let bars = |svg: &str| {
            svg.lines().filter(|line| line.starts_with("<rect")).map(str::to_owned).collect::<Vec<_>>()
        };
        let (all, but_b) = (bars(&all), bars(&but_b));
        assert_eq!(all.len(), but_b.len() + 1);
        assert!(but_b.iter().all(|bar| all.contains(bar)), "the others stand where they stood");
    }
}
