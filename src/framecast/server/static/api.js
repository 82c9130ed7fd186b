// What the page asks the server, and how its answers become arrays.

export class Refused extends Error {}

async function answer(response) {
  const body = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(body.detail ?? `The server answered ${response.status}.`);
  return body;
}

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer. Is framecast serve still running?");
  }
  return answer(response);
}

const json = (value) => ({
  method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(value),
});

export const state = () => ask("/api/state");
export const builtIn = (model) => ask(`/api/models/${model}/clips`);
export const loadBuiltIn = (model, number) => ask("/api/clips/built-in", json({ model, number }));
export const upload = (model, file, every) =>
  ask(`/api/clips/upload?${new URLSearchParams({ model, name: file.name, every })}`, { method: "POST", body: file });
export const sample = (settings) => ask("/api/jobs/sample", json(settings));
export const surprise = (settings) => ask("/api/jobs/surprise", json(settings));
export const cancel = (job) => ask(`/api/jobs/${job}`, { method: "DELETE", keepalive: true });
export const resultPath = (job, kind) => `/api/jobs/${job}/result.${kind}`;

// Calls `tell` with the job whenever it changes, one after the other, until it ends; returns how to stop.
export function follow(job, tell, lost) {
  const events = new EventSource(`/api/jobs/${job}/events`);
  let next = null, busy = false;
  events.onmessage = async (event) => {
    next = JSON.parse(event.data);
    if (["done", "failed", "cancelled"].includes(next.state)) events.close();
    if (busy) return;  // what comes meanwhile takes the place of what waits
    busy = true;
    while (next) {
      const told = next;
      next = null;
      await tell(told);
    }
    busy = false;
  };
  events.onerror = () => {
    if (events.readyState === EventSource.CLOSED) lost("The server does not know this job any more.");
    else lost("The connection is lost; trying again…");
  };
  return () => events.close();
}

// The bytes that the server packed: deflated, in base64.
export async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
