// The page of a server: it draws what the stream of the server tells once a second, and asks for
// nothing else. All text goes through textContent.
"use strict";

const SAMPLES_MAX = 300; // five minutes
const EVENTS_MAX = 200;
const at = id => document.getElementById(id);

function element(tag, classes, ...children) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  made.append(...children);
  return made;
}

function drawn(tag, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

function bytes(value) {
  const units = ["B", "K", "M", "G", "T", "P", "E"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  const digits = unit === 0 || value >= 100 || Number.isInteger(value) ? 0 : 1;
  return value.toFixed(digits) + units[unit];
}

function latency(nanos) {
  if (nanos === null) return "-";
  if (nanos < 1e6) return `${Math.round(nanos / 1e3)} us`;
  return nanos < 1e9 ? `${(nanos / 1e6).toFixed(1)} ms` : `${(nanos / 1e9).toFixed(1)} s`;
}

function duration(seconds) {
  const whole = Math.ceil(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor(whole % 3600 / 60)} min`;
  return `${Math.floor(whole / 86400)} d`;
}

// A curve of one or two series over the samples. At the top is `most`, or else the highest value.
class Plot {
  constructor(title, names, text, most = null) {
    Object.assign(this, { names, text, most, values: names.map(() => []) });
    this.caption = element("figcaption");
    this.title = title;
    this.svg = drawn("svg", { viewBox: "0 0 300 48", preserveAspectRatio: "none", role: "img" });
    this.svg.append(drawn("path", { class: "ground", d: "M0 47.5H300" }));
    this.lines = names.map((_, i) => drawn("path", { class: i ? "second" : "first" }));
    this.svg.append(...this.lines);
    this.figure = element("figure", "", this.caption, this.svg);
  }

  add(...now) {
    now.forEach((value, i) => {
      this.values[i].push(value);
      if (this.values[i].length > SAMPLES_MAX) this.values[i].shift();
    });
    const highest = this.most ?? Math.max(1, ...this.values.flat());
    this.lines.forEach((line, i) => {
      const values = this.values[i];
      const x = j => 300 - (values.length - 1 - j) * (300 / (SAMPLES_MAX - 1));
      const y = value => 47 - value / highest * 45;
      // Where there is no value, as there is no latency without requests, the line has a gap.
      const point = (value, j) => value === null ? "" :
        `${j && values[j - 1] !== null ? "L" : "M"}${x(j).toFixed(1)} ${y(value).toFixed(1)}h.1`;
      line.setAttribute("d", values.map(point).join(""));
    });
    const shown = now.map((value, i) => [
      ...(this.names.length > 1 ? [element("span", `key ${i ? "second" : "first"}`), " "] : []),
      this.names[i] ? `${this.names[i]} ` : "", element("b", "", this.text(value)), "  ",
    ]);
    this.caption.replaceChildren(`${this.title}: `, ...shown.flat());
    const words = now.map((value, i) => `${this.names[i]} ${this.text(value)}`.trim());
    this.svg.setAttribute("aria-label", `${this.title}: ${words.join(", ")}`);
  }
}

// The card of a volume. It stays while the volume does, with its curves.
class Card {
  constructor(name) {
    this.state = element("span", "state");
    this.facts = element("span", "state");
    this.losses = element("span", "losses");
    const head = element("div", "", element("h3", "", name), this.state, this.facts, this.losses);
    const perSecond = value => `${bytes(value ?? 0)}/s`;
    this.requests = new Plot("Requests/s", ["reads", "writes"], value => Math.round(value ?? 0));
    this.flow = new Plot("Bytes", ["read", "written"], perSecond);
    this.latency = new Plot("99 of 100 within", ["reads", "writes"], value => latency(value));
    this.dirty = new Plot("Dirty", [""], value => bytes(value ?? 0));
    this.writeback = new Plot("Writeback", [""], perSecond);
    this.left = element("p", "state");
    this.fills = new Map();
    const plots = [this.requests, this.flow, this.latency].map(plot => plot.figure);
    this.plots = element("div", "plots", ...plots);
    this.article = element("article", "", head, this.plots);
  }

  update(volume, rates) {
    this.state.textContent = volume.state;
    this.state.classList.toggle("suspended", volume.state === "suspended");
    const clients = `${volume.clients} client${volume.clients === 1 ? "" : "s"}`;
    this.facts.textContent = `${bytes(volume.size_bytes)}, ${clients}`;
    this.losses.textContent =
      volume.losses ? `${volume.losses} failures may have lost acknowledged writes` : "";
    this.requests.add(rates.reads.iops, rates.writes.iops);
    this.flow.add(rates.reads.bytes_per_second, rates.writes.bytes_per_second);
    this.latency.add(rates.reads.p99_ns, rates.writes.p99_ns);
    if (volume.cache) this.updateCache(volume.cache, rates);
    else for (const gone of [this.dirty.figure, this.writeback.figure, this.left]) gone.remove();
    for (const fill of volume.fill) this.updateFill(fill);
    for (const [what, { plot }] of this.fills) {
      if (volume.fill.some(fill => fill.what === what)) continue;
      plot.figure.remove();
      this.fills.delete(what);
    }
  }

  updateCache(cache, rates) {
    if (!this.dirty.figure.parentNode) {
      this.plots.append(this.dirty.figure, this.writeback.figure);
      this.article.append(this.left);
    }
    this.dirty.add(cache.dirty_bytes);
    this.writeback.add(rates.writeback_bytes_per_second);
    const words = [];
    if (cache.dirty_bytes && rates.seconds_left !== null)
      words.push(`${duration(rates.seconds_left)} left to write back`);
    if (cache.oldest_dirty_seconds !== null)
      words.push(`oldest dirty data: ${duration(cache.oldest_dirty_seconds)}`);
    if (rates.hit_percent !== null) words.push(`hits: ${Math.round(rates.hit_percent)} %`);
    this.left.textContent = words.join("; ");
  }

  updateFill(fill) {
    let shown = this.fills.get(fill.what);
    if (!shown) {
      const percent = value => `${Math.round(value ?? 0)} %`;
      const plot = new Plot(`Used ${fill.what}`, [""], percent, 100);
      const meter = element("meter");
      Object.assign(meter, { min: 0, max: 100, low: 75, high: 85, optimum: 0 });
      const words = element("p", "state");
      plot.figure.append(meter, words);
      this.plots.append(plot.figure);
      shown = { plot, meter, words };
      this.fills.set(fill.what, shown);
    }
    const percent = fill.size_bytes ? fill.used_bytes * 100 / fill.size_bytes : 0;
    shown.plot.add(percent);
    shown.meter.value = percent;
    shown.meter.setAttribute("aria-label", `used ${fill.what}`);
    shown.words.textContent = `${bytes(fill.used_bytes)} of ${bytes(fill.size_bytes)}`;
  }
}

const cards = new Map();

function updateVolumes(volumes, rates) {
  volumes.forEach((volume, i) => {
    if (!cards.has(volume.name)) cards.set(volume.name, new Card(volume.name));
    const card = cards.get(volume.name);
    card.update(volume, rates[i]);
    const place = at("volumes").children[i];
    if (place !== card.article) at("volumes").insertBefore(card.article, place ?? null);
  });
  for (const [name, card] of cards) {
    if (volumes.some(volume => volume.name === name)) continue;
    card.article.remove();
    cards.delete(name);
  }
}

// The stack: volumes that no other one stands on at the left, what they stand on below them. Of a
// volume that several stand on, what is below it is drawn once.
let shownStack = "";

function updateStack(volumes) {
  const parts = volumes.map(({ name, state, lines }) => ({
    name, state, lines: lines.map(({ table, lowers }) => ({ table, lowers })),
  }));
  const text = JSON.stringify(parts);
  if (text === shownStack) return;
  shownStack = text;
  const byName = new Map(parts.map(part => [part.name, part]));
  const isBeneath = new Set(parts.flatMap(part => part.lines.flatMap(line => line.lowers)));
  const tops = parts.filter(part => !isBeneath.has(`@${part.name}`));
  const drawnParts = new Set();
  at("stack").replaceChildren(...tops.map(part => branch(part, byName, drawnParts)));
}

function branch(part, byName, drawnParts) {
  drawnParts.add(part.name);
  const head = element("span", "name", part.name);
  const made = element("li", "", head, " ", element("span", "state", part.state));
  for (const { table, lowers } of part.lines) {
    const below = element("ul");
    for (const lower of lowers) {
      const volume = lower.startsWith("@") ? byName.get(lower.slice(1)) : undefined;
      const isNew = volume && !drawnParts.has(volume.name);
      below.append(isNew ? branch(volume, byName, drawnParts)
        : element("li", "lower", element("code", "", lower)));
    }
    made.append(element("div", "line", table));
    if (below.children.length) made.append(below);
  }
  return made;
}

function addEvents(events) {
  for (const event of events) {
    const words = event.what === "event" ? `event ${event.event_nr}`
      : [event.what, event.device ?? ""].join(" ").trim();
    const time = new Date(event.unix_ms).toLocaleTimeString();
    const cells = [time, event.name, words].map(text => element("td", "", text));
    at("events").prepend(element("tr", "", ...cells));
  }
  while (at("events").children.length > EVENTS_MAX) at("events").lastChild.remove();
  at("no-events").hidden = at("events").children.length > 0;
}

function update({ figures, rates, events }) {
  const { volumes } = figures;
  const dirty = volumes.reduce((sum, volume) => sum + (volume.cache?.dirty_bytes ?? 0), 0);
  const counted = `${volumes.length} volume${volumes.length === 1 ? "" : "s"}`;
  at("summary").textContent = `${counted}, ${bytes(dirty)} dirty, process ${figures.pid}`;
  at("missing").hidden = figures.not_served.length === 0;
  at("missing").textContent = `Not served: ${figures.not_served.join(", ")} (cairn state show)`;
  updateStack(volumes);
  updateVolumes(volumes, rates);
  addEvents(events);
}

function link(words, classes) {
  if (at("link").textContent === words) return;
  at("link").textContent = words;
  at("link").className = classes;
}

function follow() {
  const stream = new EventSource("stream");
  stream.onmessage = message => {
    link("live", "live");
    update(JSON.parse(message.data));
  };
  stream.onerror = () => {
    link("no connection to the server", "lost");
    // A browser that was refused, as too many pages are open, does not ask again by itself.
    if (stream.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
  };
}
follow();
