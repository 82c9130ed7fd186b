import * as api from "./api.js";
import { Clip, Player } from "./player.js";

const at = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const SPOKEN_EVERY = 5000;  // milliseconds between two announcements to a screen reader

let server, model, file = null, clip = null, job = null, stop = () => {};

const player = new Player(at("job"), (frame) => {
  const words = `Frame ${frame} of ${player.length - 1}${job ? ` · ${job.says(frame)}` : ""}`;
  at("frame-note").textContent = words;
  job?.chart?.(frame);
  return words;
});

const number = (id) => at(id).valueAsNumber;
const seconds = (value) =>
  value < 1 ? "less than a second" : value < 90 ? `${Math.round(value)} s` : `${Math.round(value / 60)} min`;

function complain(error) {
  if (error && !(error instanceof api.Refused)) console.error(error);
  at("message").hidden = !error;
  at("message").textContent = error ? error.message : "";
}

// Runs what a person asked for; what the server refuses is told beside the buttons.
const doing = (action) => async (...given) => {
  complain(null);
  try {
    await action(...given);
  } catch (error) {
    complain(error);
  }
};

// Models and clips

async function begin() {
  server = await api.state();
  at("model").replaceChildren(...server.models.map((each, i) => new Option(each.name, i)));
  at("file").accept = [...server.suffixes, "video/*"].join(",");
  const { upload_bytes, clip_frames, frames, samples } = server.limits;
  at("file-note").textContent =
    `Any video, animated picture or npz up to ${upload_bytes >> 20} MiB and ${clip_frames} frames; it is cropped and resized for the model.`;
  at("frames").max = frames;
  at("prime").max = frames - 1;
  at("samples").max = samples;
  await chooseModel();
}

async function chooseModel() {
  model = server.models[Number(at("model").value)];
  const [frames, height, width] = model.video_shape;
  at("model-facts").textContent =
    `${frames} frames of ${height}×${width} in ${model.channels === 1 ? "grey" : "colour"}, ` +
    `${model.parameters.toLocaleString("en")} parameters; ${model.num_slices} slices of ${model.slice_shape.join("×")}` +
    `${model.draws ? "" : "; predicts one value a pixel, so there is nothing to draw"}` +
    `${model.takes_actions ? "; needs actions, which only clips of a store have" : ""}.`;
  for (const part of document.querySelectorAll(".drawing")) part.hidden = !model.draws;
  at("frames").min = frames;
  at("frames").value = frames;
  at("start").value = 0;
  at("prime").value = Math.max(1, model.prime_frames);
  at("previous").disabled = at("next").disabled = true;
  at("built-in-note").textContent = "Looking for clips…";
  const offer = await api.builtIn(at("model").value);
  at("built-in").hidden = !offer.count;
  at("number").max = offer.count - 1;
  at("previous").disabled = at("next").disabled = false;
  at("built-in-note").textContent = offer.count
    ? `${offer.count.toLocaleString("en")} ${offer.what}`
    : offer.why ? `No built-in clips: ${offer.why}` : "No built-in clips suit this model: take a video of yours.";
  if (file) await loadFile();
  else if (offer.count) await loadNumber();
  else showClip(null);
}

const loadNumber = () => {
  file = null;
  at("file").value = "";
  at("every-row").hidden = true;
  return load(() => api.loadBuiltIn(Number(at("model").value), number("number")));
};

const loadFile = () => {
  at("every-row").hidden = false;
  if (file.size > server.limits.upload_bytes)
    throw new api.Refused(`${file.name} is larger than ${server.limits.upload_bytes >> 20} MiB, which is the limit.`);
  return load(() => api.upload(Number(at("model").value), file, number("every") || 1));
};

let loads = 0;

// The latest clip that was asked for wins, whichever comes last.
async function load(ask) {
  const mine = ++loads;
  showClip(null, file ? `Reading ${file.name}…` : "Loading…");
  try {
    const loaded = await ask();
    const bytes = await api.unpack(loaded.video);
    if (mine === loads) showClip({ ...loaded, frames: new Clip(bytes, loaded.shape) });
  } catch (error) {
    if (mine === loads) showClip(null);
    throw error;
  }
}

function showClip(loaded, note = "Choose a clip, or a video of yours.") {
  clip = loaded;
  at("go").disabled = at("measure").disabled = !clip;
  at("clip-note").textContent = clip ? `${clip.name}: ${clip.shape[0]} frames` : note;
  if (clip) {
    at("start").max = clip.shape[0] - 1;
    if (number("start") >= clip.shape[0]) at("start").value = 0;
  }
  showStrip();
}

// The frames that the settings take, those given to the model marked.
function showStrip() {
  const start = number("start") || 0, prime = number("prime") || 0, frames = number("frames") || 0;
  const items = [];
  for (let i = 0; clip && i < frames && start + i < clip.shape[0] && i < server.limits.frames; i++) {
    const item = document.createElement("li"), canvas = document.createElement("canvas");
    clip.frames.paint(canvas, start + i);
    canvas.setAttribute("aria-hidden", "true");
    item.append(canvas, `${start + i}${i < prime ? " given" : ""}`);
    item.classList.toggle("given", i < prime);
    items.push(item);
  }
  at("strip").replaceChildren(...items);
  at("prime-note").textContent = model && prime < model.prime_frames
    ? `This model was trained with ${model.prime_frames} frames given: it never learned the ones before.` : "";
}

// Jobs

const part = () => ({ clip: clip.id, start: number("start"), frames: number("frames") });
const check = () => at("controls").reportValidity();

async function continueClip() {
  if (!clip || !check()) return;
  const start = number("start"), prime = number("prime"), frames = number("frames");
  const samples = model.draws ? number("samples") : 1;
  const told = await api.sample({
    ...part(), prime_frames: prime, samples, temperature: number("temperature"), seed: number("seed"),
  });
  const truth = truthOf(start, frames);
  const says = (frame) =>
    frame < prime ? "given to the model" : frame < truth.length ? "drawn by the model" : "drawn; the clip has ended";
  open(told, "Continuation", ["The clip", ...sampleTitles(samples)], truth, frames, says, showSamples);
}

async function measureClip() {
  if (!clip || !check()) return;
  const told = await api.surprise(part());
  const truth = truthOf(number("start"), number("frames"));
  const unscored = model.prime_frames;
  const says = (frame) => (frame < unscored ? "never scored in training" : "scored");
  open(told, "Surprise", ["The clip", "Bits per pixel"], truth, truth.length, says, showSurprise);
}

const sampleTitles = (samples) =>
  samples === 1 ? ["Drawn"] : Array.from({ length: samples }, (_, i) => `Sample ${i + 1}`);

function truthOf(start, frames) {
  const [, height, width, channels] = clip.shape;
  const size = height * width * channels;
  const bytes = clip.frames.bytes.subarray(start * size, (start + frames) * size);
  return new Clip(bytes, [bytes.length / size, height, width, channels]);
}

function open(told, title, titles, truth, length, says, show) {
  leave();
  job = { id: told.id, running: true, truth, says, spoken: -Infinity };
  at("job").hidden = false;
  at("job-title").textContent = title;
  at("surprise").hidden = at("downloads").hidden = true;
  at("under-way").hidden = at("cancel").hidden = false;
  at("cancel").disabled = false;
  player.open(titles, length);
  player.put(0, truth);
  const mine = job;
  const showIt = async (now) => { if (job === mine) await show(now); };
  const tell = (now) => job === mine && watch(now, showIt).catch(complain);
  stop = api.follow(told.id, tell, (why) => { at("progress").textContent = why; });
  at("job").scrollIntoView({ behavior: calm.matches ? "auto" : "smooth", block: "nearest" });
}

// Gives up what is under way.
function leave() {
  stop();
  if (job?.running) api.cancel(job.id).catch(() => {});
  job = null;
}

async function watch(now, show) {
  const words = progressIn(now);
  at("progress").textContent = words;
  const bar = at("bar"), share = shareDone(now);
  if (share === null) bar.removeAttribute("value");
  else bar.value = share;
  const ended = ["done", "failed", "cancelled"].includes(now.state);
  if (ended || performance.now() - job.spoken > SPOKEN_EVERY) {
    job.spoken = performance.now();
    at("spoken").textContent = words;
  }
  if (ended) job.running = false;
  await show(now);
  if (ended) finish(now);
}

function progressIn(now) {
  if (now.state === "waiting")
    return now.place ? `In the queue: ${now.place} ${now.place === 1 ? "job is" : "jobs are"} before yours.` : "Next in the queue.";
  if (now.state === "failed") return `It failed: ${now.error}`;
  if (now.state === "cancelled") return "Cancelled.";
  if (now.state === "done") return "Done.";
  if (now.doing === "drawing" || now.doing === "measuring") {
    const wave = now.doing === "drawing" ? ` · wave ${now.wave} of ${now.num_waves}` : "";
    const left = now.seconds_left === undefined ? "" : ` · about ${seconds(now.seconds_left)} left`;
    return `Slice ${now.slice + 1} of ${now.num_slices}${wave}${left}`;
  }
  return now.doing === "loading the model" ? "Loading the model…" : "Starting…";
}

function shareDone(now) {
  if (now.state === "done") return 1;
  if (now.num_slices === undefined) return null;
  return (now.slice + (now.num_waves ? now.wave / now.num_waves : 0)) / now.num_slices;
}

async function showSamples(now) {
  if (!now.video) return;
  const [samples, ...shape] = now.shape;
  const [bytes, drawn] = await Promise.all([api.unpack(now.video), api.unpack(now.drawn)]);
  const size = bytes.length / samples;
  for (let i = 0; i < samples; i++) player.put(1 + i, new Clip(bytes.subarray(i * size, (i + 1) * size), shape, drawn));
  if (!player.touched && now.state === "running") player.show(player.views[1].clip.underWay());
}

async function showSurprise(now) {
  if (!now.map) return;
  const { length, height, width } = job.truth;
  const [map, palette] = await Promise.all([api.unpack(now.map), api.unpack(now.palette)]);
  const coloured = new Uint8Array(3 * map.length);
  map.forEach((value, i) => coloured.set(palette.subarray(3 * value, 3 * value + 3), 3 * i));
  player.put(1, new Clip(coloured, [length, height, width, 3]));
  new Clip(palette, [1, 1, 256, 3]).paint(at("scale"), 0);
  at("most").textContent = `${now.bits_at_255.toPrecision(3)} bits and more`;
  at("readout").textContent = `${now.bits_per_dim.toFixed(3)} bits per value over the frames from ${now.prime_frames} on.`;
  const summary = at("readout").textContent;
  const canvas = player.views[1].canvas;
  canvas.onpointermove = (event) => {
    const column = Math.floor(event.offsetX / canvas.clientWidth * width);
    const row = Math.floor(event.offsetY / canvas.clientHeight * height);
    const value = map[(player.frame * height + row) * width + column];
    if (value !== undefined)
      at("readout").textContent = `Row ${row}, column ${column}: ${(value / 255 * now.bits_at_255).toFixed(2)} bits.`;
  };
  canvas.onpointerleave = () => { at("readout").textContent = summary; };
  job.chart = chartOf(now.bits_per_frame, now.prime_frames);
  at("surprise").hidden = false;
  player.show(player.frame);
}

// A bar a frame; returns how to mark the one that is shown.
function chartOf(bits, unscored) {
  const most = Math.max(...bits.slice(unscored)), peak = bits.indexOf(most, unscored);
  const bars = bits.map((value, i) => {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const height = Math.min(1, value / most) * 40;
    const place = { x: (i + .1) * 100 / bits.length, y: 40 - height, width: 80 / bits.length, height };
    for (const [name, at] of Object.entries(place)) bar.setAttribute(name, at);
    bar.classList.toggle("unscored", i < unscored);
    return bar;
  });
  at("chart").replaceChildren(...bars);
  at("chart").style.maxWidth = `${2 * bits.length}rem`;
  at("chart").setAttribute("aria-label",
    `Bits per pixel of each frame: ${bits.map((value, i) => `frame ${i} ${value.toFixed(2)}`).join(", ")}.`);
  const grey = unscored ? ` The first ${unscored}, in grey, were never scored in training.` : "";
  at("chart-note").textContent = `Mean bits per pixel of each frame; most in frame ${peak}: ${most.toFixed(2)}.${grey}`;
  return (frame) => bars.forEach((bar, i) => bar.classList.toggle("now", i === frame));
}

function finish(now) {
  at("cancel").hidden = true;
  if (now.state !== "done") return;
  at("under-way").hidden = true;
  for (const link of at("downloads").querySelectorAll("a")) link.href = api.resultPath(now.id, link.dataset.kind);
  at("downloads").hidden = false;
  if (!player.touched) {
    player.show(0);
    player.play(!calm.matches);
  }
}

// What a person does

at("controls").addEventListener("submit", (event) => {
  event.preventDefault();
  doing(continueClip)();
});
at("measure").addEventListener("click", doing(measureClip));
at("cancel").addEventListener("click", doing(async () => {
  at("cancel").disabled = true;
  at("progress").textContent = "Cancelling…";
  await api.cancel(job.id);
}));
at("model").addEventListener("change", doing(chooseModel));
at("number").addEventListener("change", doing(async () => { if (at("number").reportValidity()) await loadNumber(); }));
for (const [id, step] of [["previous", -1], ["next", 1]])
  at(id).addEventListener("click", doing(async () => {
    const last = Number(at("number").max);
    at("number").value = Math.min(last, Math.max(0, (number("number") || 0) + step));
    await loadNumber();
  }));
at("file").addEventListener("change", doing(async () => {
  file = at("file").files[0] ?? null;
  if (file) await loadFile();
}));
at("every").addEventListener("change", doing(async () => { if (file && at("every").reportValidity()) await loadFile(); }));
for (const kind of ["dragover", "dragleave", "drop"])
  at("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    at("drop").classList.toggle("over", kind === "dragover");
  });
at("drop").addEventListener("drop", doing(async (event) => {
  file = event.dataTransfer.files[0] ?? null;
  if (file) await loadFile();
}));
for (const id of ["start", "prime", "frames"]) at(id).addEventListener("input", showStrip);
at("another").addEventListener("click", () => { at("seed").value = crypto.getRandomValues(new Uint32Array(1))[0] % 100000; });
addEventListener("pagehide", () => { if (job?.running) api.cancel(job.id).catch(() => {}); });

doing(begin)();
