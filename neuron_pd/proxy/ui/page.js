"use strict";

const PERIOD = 2000;
const byId = (id) => document.getElementById(id);

/** An element with text; whatever the text holds, it stays text. */
function element(name, text, kind) {
  const made = document.createElement(name);
  made.textContent = text === null || text === undefined ? "–" : String(text);
  if (kind) made.className = kind;
  return made;
}

function row(cells) {
  const made = document.createElement("tr");
  cells.forEach(([text, kind], index) => {
    const cell = element(index === 0 ? "th" : "td", text, kind);
    if (index === 0) cell.scope = "row";
    made.append(cell);
  });
  return made;
}

const whole = (value) => (value === null ? null : Math.round(value).toLocaleString("en"));
const percent = (part, all) => (all ? `${Math.round((100 * part) / all)} %` : null);

function engineState(engine) {
  if (engine.leaving) return ["leaving", "warn"];
  if (engine.draining) return ["draining", "warn"];
  return engine.usable ? ["ready", "good"] : ["not usable", "bad"];
}

function showEngines(state) {
  byId("engines").replaceChildren(
    ...state.engines.map((engine) =>
      row([
        [engine.role],
        [engine.url],
        engineState(engine),
        [engine.breaker.replace("_", " "), engine.breaker === "closed" ? "" : "warn"],
        [engine.reuse ? "yes" : "no"],
        [whole(engine.in_flight), "number"],
        [whole(engine.load), "number"],
        [engine.info ? engine.info.model : null],
      ])
    )
  );
  const problems = state.engines.flatMap((engine) =>
    engine.problems.map((problem) => `${engine.role} ${engine.url}: ${problem.what}; ${problem.change}`)
  );
  const sources = state.sources.map((source) => `${source.source}: ${source.what}`);
  byId("problems").replaceChildren(...[...problems, ...sources].map((text) => element("li", text)));
}

function showFigures(state) {
  const { recent } = state;
  const figures = [
    ["Cache hits, last turns", percent(recent.hits, recent.turns - recent.failed)],
    ["First token, median", recent.first_token_ms.p50 === null ? null : `${whole(recent.first_token_ms.p50)} ms`],
    ["First token, 95 %", recent.first_token_ms.p95 === null ? null : `${whole(recent.first_token_ms.p95)} ms`],
    ["Prefill, median", recent.prefill_ms.p50 === null ? null : `${whole(recent.prefill_ms.p50)} ms`],
    ["Streams in flight", whole(state.streams)],
    ["Conversation keys", state.conversation_keys === null ? "shared" : whole(state.conversation_keys)],
    ["Failed, last turns", `${recent.failed} of ${recent.turns}`],
  ];
  byId("figures").replaceChildren(
    ...figures.map(([name, value]) => {
      const pair = document.createElement("div");
      pair.append(element("dt", name), element("dd", value));
      return pair;
    })
  );
}

function showTurns(state) {
  byId("turns").replaceChildren(
    ...state.recent.last.map((turn) =>
      row([
        [new Date(1000 * turn.at).toLocaleTimeString("en-GB")],
        [turn.path, turn.path === "failed" ? "bad" : ""],
        [turn.outcome.toUpperCase(), turn.outcome === "hit" ? "good" : ""],
        [turn.reason],
        [turn.status, "number"],
        [whole(turn.prompt), "number"],
        [whole(turn.reused), "number"],
        [whole(turn.prefill), "number"],
        [whole(turn.first_token), "number"],
        [whole(turn.total), "number"],
      ])
    )
  );
}

/** Said only when it changes, so that a screen reader is not interrupted every two seconds. */
function say(text, kind) {
  const status = byId("status");
  if (status.textContent !== text) {
    status.textContent = text;
    status.className = kind;
  }
}

async function refresh() {
  try {
    const response = await fetch("/ui/state", { cache: "no-store" });
    if (!response.ok) throw new Error(`status ${response.status}`);
    const state = await response.json();
    showEngines(state);
    showFigures(state);
    showTurns(state);
    say(state.ready ? "Ready" : "Not ready: no usable pair of a prefill and a decode engine", state.ready ? "good" : "bad");
  } catch {
    say("The proxy gives no answer; what is shown is old", "bad");
  }
}

async function live() {
  if (!document.hidden) await refresh();
  setTimeout(live, PERIOD);
}

live();
