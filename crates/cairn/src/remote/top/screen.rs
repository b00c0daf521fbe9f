//! The screen of `top`: a row per volume, and below them what the chosen one is made of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use cairn_outcome::exit;
use cairn_outcome::failure::{Outcome, system};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Row as TableRow, Table, TableState};
use ratatui::{DefaultTerminal, Frame};
use signal_hook::consts::{SIGHUP, SIGTERM};

use super::figures;
use super::rows::{HEAD, Row, Summary, duration, latency, percent, rows};
use crate::cli::TopArgs;
use crate::remote::columns::Sizes;
use cairn_control::client::Client;
use cairn_control::watch::figures::Figures;

/// How often the screen is drawn again.
const STEP: Duration = Duration::from_millis(100);

/// The order of rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Name,
    Requests,
    Dirty,
}

/// What is on the screen.
struct Screen {
    /// The last answer, and rows of it and the one before, in their order.
    figures: Figures,
    rows: Vec<Row>,
    order: Order,
    /// The volume that is chosen, and where its row is.
    chosen: Option<String>,
    place: TableState,
    /// Why the last question had no answer.
    last_error: Option<String>,
}

/// Shows the screen until `q`.
///
/// # Errors
/// There is no server, or the terminal refuses.
pub fn run(server: &Client, args: &TopArgs) -> Outcome<u8> {
    let begin = figures(server, &args.names)?;
    let failed = |error| system("terminal", "top", error);
    let is_asked_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, is_asked_to_end.clone()).map_err(failed)?;
    }
    let mut screen = Screen::new(begin);
    let answers = answers(server.clone(), args);
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let end = screen.run(&mut terminal, &answers, &is_asked_to_end);
    ratatui::restore();
    end.map_err(failed).map(|()| exit::OK)
}

/// The answers of the server, one per interval. They are asked for in a thread, which ends with the
/// program: a server that does not answer keeps no key from being heard.
fn answers(server: Client, args: &TopArgs) -> Receiver<Outcome<Figures>> {
    let (send, receive) = channel();
    let (names, interval) = (args.names.clone(), args.interval);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(interval);
            if send.send(figures(&server, &names)).is_err() {
                return;
            }
        }
    });
    receive
}

impl Screen {
    fn new(figures: Figures) -> Screen {
        let chosen = figures.volumes.first().map(|volume| volume.name.clone());
        let rows = rows(&figures, &figures);
        let (order, place, last_error) = (Order::Name, TableState::new(), None);
        Screen { figures, rows, order, chosen, place, last_error }
    }

    fn run(
        &mut self,
        terminal: &mut DefaultTerminal,
        answers: &Receiver<Outcome<Figures>>,
        is_asked_to_end: &AtomicBool,
    ) -> std::io::Result<()> {
        while !is_asked_to_end.load(Ordering::Relaxed) {
            terminal.draw(|frame| self.draw(frame))?;
            if event::poll(STEP)?
                && let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && !self.act(key.code, key.modifiers)
            {
                return Ok(());
            }
            answers.try_iter().for_each(|answer| self.take(answer));
        }
        Ok(())
    }

    fn take(&mut self, answer: Outcome<Figures>) {
        match answer {
            Ok(now) => {
                self.rows = rows(&self.figures, &now);
                self.figures = now;
                self.last_error = None;
                self.sort();
            }
            // The server may come back.
            Err(error) => self.last_error = Some(error.to_string()),
        }
    }

    /// Acts on a key. False if it ends the screen.
    fn act(&mut self, key: KeyCode, modifiers: KeyModifiers) -> bool {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Down | KeyCode::Char('j') => self.choose(|at, last| (at + 1).min(last)),
            KeyCode::Up | KeyCode::Char('k') => self.choose(|at, _| at.saturating_sub(1)),
            KeyCode::Home => self.choose(|_, _| 0),
            KeyCode::End => self.choose(|_, last| last),
            KeyCode::Char('n') => self.order = Order::Name,
            KeyCode::Char('r') => self.order = Order::Requests,
            KeyCode::Char('d') => self.order = Order::Dirty,
            _ => {}
        }
        self.sort();
        true
    }

    /// Where the row of the chosen volume is; the first one's if that volume is gone.
    fn chosen_at(&self) -> usize {
        let is_chosen = |row: &Row| Some(&row.volume.name) == self.chosen.as_ref();
        self.rows.iter().position(is_chosen).unwrap_or(0)
    }

    fn choose(&mut self, next: impl Fn(usize, usize) -> usize) {
        let at = next(self.chosen_at(), self.rows.len().saturating_sub(1));
        self.chosen = self.rows.get(at).map(|row| row.volume.name.clone());
    }

    fn sort(&mut self) {
        let requests = |row: &Row| row.rates.reads.iops + row.rates.writes.iops;
        let dirty = |row: &Row| row.volume.cache.as_ref().map_or(0, |cache| cache.dirty_bytes);
        self.rows.sort_by(|a, b| a.volume.name.cmp(&b.volume.name));
        match self.order {
            Order::Name => {}
            Order::Requests => self.rows.sort_by(|a, b| requests(b).total_cmp(&requests(a))),
            Order::Dirty => self.rows.sort_by_key(|row| std::cmp::Reverse(dirty(row))),
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let at = self.chosen_at();
        self.place.select(Some(at));
        let chosen = self.rows.get(at);
        let details = chosen.map_or_else(Vec::new, details);
        let below = (details.len() as u16 + 1).min(frame.area().height / 2);
        let areas = [Constraint::Length(1), Constraint::Min(2), Constraint::Length(below)];
        let [top, middle, bottom] = Layout::vertical(areas).areas(frame.area());
        self.draw_top(frame, top);
        let title = chosen.map_or(String::new(), |row| format!(" {} ", row.volume.name));
        let details: Vec<Line<'_>> = details.into_iter().map(Line::from).collect();
        let block = Block::new().borders(Borders::TOP).title(title);
        frame.render_widget(Paragraph::new(details).block(block), bottom);
        draw_rows(frame, middle, &self.rows, &mut self.place);
    }

    fn draw_top(&self, frame: &mut Frame<'_>, area: Rect) {
        let keys = "q quit  n name  r requests  d dirty";
        let (text, style) = match &self.last_error {
            Some(error) => {
                (format!("no answer: {error}"), Style::new().add_modifier(Modifier::REVERSED))
            }
            None => (format!("cairn: {}   {keys}", Summary::of(&self.figures)), Style::new()),
        };
        frame.render_widget(Paragraph::new(text).style(style), area);
    }
}

fn draw_rows(frame: &mut Frame<'_>, area: Rect, rows: &[Row], place: &mut TableState) {
    let width = |at: usize| {
        let cells = rows.iter().map(|row| row.cells[at].chars().count());
        cells.max().unwrap_or(0).max(HEAD[at].len()) as u16
    };
    let widths: [u16; HEAD.len()] = std::array::from_fn(width);
    // Numbers stand on the right, as in the tables.
    let aligned = |at: usize, text: &str| {
        let width = usize::from(widths[at]);
        if at < 2 { format!("{text:<width$}") } else { format!("{text:>width$}") }
    };
    let cells = |cells: &[String; HEAD.len()]| -> Vec<String> {
        cells.iter().enumerate().map(|(at, text)| aligned(at, text)).collect()
    };
    let head: Vec<String> = (0..HEAD.len()).map(|at| aligned(at, HEAD[at])).collect();
    let table = Table::new(rows.iter().map(|row| TableRow::new(cells(&row.cells))), widths)
        .header(TableRow::new(head).style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, place);
}

/// What a volume is made of, and how full.
fn details(row: &Row) -> Vec<String> {
    let volume = &row.volume;
    let mut lines = vec![format!(
        "{}, {} clients, {} events, {} losses; half of the reads within {}, of the writes {}",
        Sizes::Human.text(volume.size_bytes),
        volume.clients,
        volume.event_nr,
        volume.losses,
        latency(row.rates.reads.p50_ns),
        latency(row.rates.writes.p50_ns),
    )];
    let oldest = volume.cache.as_ref().and_then(|cache| cache.oldest_dirty_seconds);
    lines.extend(oldest.map(|age| format!("oldest dirty data: {}", duration(age as f64))));
    for fill in &volume.fill {
        let (used, size) = (fill.used_bytes, fill.size_bytes);
        let percent = percent(used, size);
        let bar = "#".repeat(percent as usize / 4);
        let of = format!("{} of {}", Sizes::Human.text(used), Sizes::Human.text(size));
        lines.push(format!("{:<8} [{bar:<25}] {percent:>3}%  {of}", fill.what));
    }
    lines.extend(volume.lines.iter().map(|line| line.status.clone()));
    lines
}

#[cfg(test)]
mod tests {
    use super::Screen;
    use cairn_block::{ConfigError, ConfigKind};
    use cairn_control::watch::figures::{CacheFigures, Figures, Fill, VolumeFigures};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyModifiers};

    fn volume(name: &str, dirty_bytes: u64) -> VolumeFigures {
        let cache = CacheFigures { dirty_bytes, ..CacheFigures::default() };
        let fill = Fill { what: "data".to_owned(), used_bytes: 3 << 20, size_bytes: 4 << 20 };
        VolumeFigures {
            name: name.to_owned(),
            state: "active".to_owned(),
            size_bytes: 1 << 30,
            cache: Some(cache),
            fill: vec![fill],
            ..VolumeFigures::default()
        }
    }

    fn drawn(screen: &mut Screen) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(100, 12)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y| (0..100).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..12).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn the_screen_shows_volumes_in_the_order_asked_for_and_the_chosen_one_below() {
        let volumes = vec![volume("a", 512), volume("b", 2 << 20)];
        let now = Figures { time_ns: 1, volumes, ..Figures::default() };
        let mut screen = Screen::new(now.clone());
        let lines = drawn(&mut screen);
        assert!(lines[0].starts_with("cairn: 2 volumes, 2.0M dirty"), "{lines:#?}");
        assert!(lines[1].starts_with("NAME STATE"), "{lines:#?}");
        assert!(lines[2].starts_with("a    active") && lines[3].starts_with("b    active"));
        assert!(lines.iter().any(|line| line.contains(" a ──")), "{lines:#?}");
        let bar = "data     [##################       ]  75%  3M of 4M";
        assert!(lines.iter().any(|line| line == bar), "{lines:#?}");
        assert!(screen.act(KeyCode::Char('d'), KeyModifiers::NONE));
        assert!(drawn(&mut screen)[2].starts_with("b    active"));
        // The volume stays chosen, wherever its row goes.
        let lines = drawn(&mut screen);
        assert!(lines.iter().any(|line| line.contains(" a ──")), "{lines:#?}");
        assert!(screen.act(KeyCode::Up, KeyModifiers::NONE));
        screen.take(Ok(now));
        let lines = drawn(&mut screen);
        assert!(lines.iter().any(|line| line.contains(" b ──")), "{lines:#?}");
        let away = ConfigError::new(ConfigKind::System, "control.sock", "nothing listens");
        screen.take(Err(away));
        assert_eq!(drawn(&mut screen)[0], "no answer: control.sock: nothing listens");
        assert!(!screen.act(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!screen.act(KeyCode::Char('q'), KeyModifiers::NONE));
    }
}
