// The page's own parts: drop zone, stage with preview and slider, strip of jobs, live line. No dependency, no build step.
// Words come from the server's dict; text of users and of the server is only ever set as textContent.
(() => {
  "use strict";
  const boot = window.rcBoot;
  const T = boot.texts;
  const t = (key, args = {}) => T[key].replace(/\{(\w+)\}/g, (_, name) => args[name] ?? "");
  const parts = {}; // name -> root element, as Gradio mounts them
  const jobs = new Map(); // id -> job as the server tells it
  const live = new Map(); // id -> what the live line said of a running job
  const cards = new Map(); // id -> card of the job's picture
  const state = { card: null, focus: null, form: null, online: true, engine: { state: "starting" }, stats: null, weights: [], restoring: null, opened: false };

  // ---- small helpers

  const one = (root, selector) => root.querySelector(selector);
  const show = (element, visible) => { element.hidden = !visible; };
  const say = (element, text) => { if (element.textContent !== (text ?? "")) element.textContent = text ?? ""; };
  const tell = (element, text) => { say(element, text); show(element, Boolean(text)); }; // a line that is there only with words
  const media = (name, download) => `/api/media/${encodeURIComponent(name)}${download ? "?dl=1" : ""}`;
  const gb = (value) => Number(value).toFixed(1);
  const clock = (s) => { const n = Math.max(0, Math.round(s)); return `${Math.floor(n / 60)}:${String(n % 60).padStart(2, "0")}`; };
  const ended = (job) => !["queued", "running"].includes(job.state);
  const ICONS = {
    picture: "M3 5h18v14H3zM3 16l5-5 4 4 3-3 6 6M15.5 9.5h.01",
    close: "M6 6l12 12M18 6L6 18",
    sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M5 19l1.4-1.4M17.6 6.4L19 5",
    moon: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z",
    screen: "M3 4h18v12H3zM8 20h8M12 16v4",
    ok: "M5 12.5l4.5 4.5L19 7.5",
    warn: "M12 4L2.5 20h19zM12 10v4.5M12 17.4v.1",
    before: "M12 3v18M12 7H5v10h7M12 7h7v10h-7",
  };
  const icon = (name) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", "0 0 24 24");
    svg.setAttribute("aria-hidden", "true");
    svg.classList.add("rc-svg");
    const path = document.createElementNS(svg.namespaceURI, "path");
    path.setAttribute("d", ICONS[name]);
    svg.append(path);
    return svg;
  };
  const make = (tag, props = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), props);
    element.append(...children.filter((child) => child !== null));
    return element;
  };
  const store = {
    get(key) { try { return JSON.parse(localStorage.getItem(key)); } catch { return null; } },
    set(key, value) { try { localStorage.setItem(key, JSON.stringify(value)); } catch { /* private mode: nothing is kept */ } },
  };
  async function api(method, url, body) {
    let answer;
    try {
      const headers = body ? { "Content-Type": "application/json" } : {};
      answer = await fetch(url, { method, headers, body: body && JSON.stringify(body) });
    } catch {
      throw { code: "offline", message: T["go.offline"] };
    }
    const data = await answer.json().catch(() => null);
    if (answer.ok && data !== null) return data;
    throw data?.message ? data : { code: "unknown", message: t("err.unknown", { status: answer.status }) };
  }

  // ---- the form: Gradio's controls hold the values, this keeps a copy in localStorage

  const kept = store.get("rc_form"); // read before the first change event of a fresh page could overwrite it
  let opened = false;
  let pending = null;
  const named = (values) => Object.fromEntries(boot.fields.map((name, i) => [name, values[i]]));
  const listed = (form) => [...boot.fields].map((name) => form[name]);

  function save(values) {
    state.form = named(values);
    drawVersion();
    if (parts.stage) render(); // a running job may now be offered another version
    say(one(document, "#rc-f-preset .info-text") ?? make("i"), boot.presets[state.form.preset]?.tip ?? T["set.custom.tip"]);
    if (!opened) return;
    clearFieldErrors();
    store.set("rc_form", { ...state.form, newest: state.form.lora === defaultVersion() });
    if (state.card && cardAsked !== cardQuery()) refreshCard();
  }
  async function openedForm(values) {
    const fresh = named(values);
    state.form = { ...fresh };
    const listing = await api("GET", "/api/weights").catch(() => null);
    if (listing) state.weights = listing;
    if (kept) {
      for (const name of boot.fields) if (!/^lora/.test(name) && typeof kept[name] === typeof state.form[name]) state.form[name] = kept[name];
      if (!(state.form.size in boot.sizes)) state.form.size = "safe";
      for (const [name, values] of Object.entries(boot.choices)) if (!values.includes(state.form[name])) state.form[name] = fresh[name];
      state.form.vram = Math.min(state.form.vram, boot.most_vram);
      // Who never chose another version gets the newest, also when that is a new file.
      if (listing) state.form.lora = kept.newest || !knownVersion(kept.lora) ? defaultVersion() : kept.lora;
      if (listing) for (const name of ["lora2", "lora3"]) if (knownVersion(kept[name])) state.form[name] = kept[name];
    }
    opened = state.opened = true;
    drawVersion();
    return listed(state.form);
  }
  const defaultVersion = () => state.weights.find((info) => info.default)?.name ?? boot.none;
  const knownVersion = (name) => name === boot.none || state.weights.some((info) => info.name === name && info.action !== "reject");
  function applied(values) {
    const form = { ...named(values), ...pending };
    pending = null;
    return listed(form);
  }
  function change(values) { // set controls from the page's own parts
    pending = values;
    one(document, "#rc-apply").click();
  }
  const preset = ([name, ...numbers]) => {
    const found = boot.presets[name];
    return found ? [found.cfg, found.steps, found.size, found.strategy] : numbers;
  };
  const presetOf = ([cfg, steps, size]) =>
    Object.keys(boot.presets).find((name) => { const p = boot.presets[name]; return p.cfg === cfg && p.steps === steps && p.size === size; }) ?? "custom";
  const promptOf = ([set, text]) => boot.prompts[set] ?? text;
  const promptSetOf = (text) => Object.keys(boot.prompts).find((name) => boot.prompts[name] === text) ?? "own";
  // Without a LoRA there is nothing whose strength could be set.
  const strengthFor = (version) => ({ __type__: "update", interactive: Boolean(version) && version !== boot.none });
  const newSeed = () => crypto.getRandomValues(new Uint32Array(1))[0];

  const FIELD_OF = { steps: "steps", cfg: "cfg", seed: "seed", size: "size", long_edge: "size", tile: "tile", offload: "offload", vram: "vram", strategy: "strategy", prompt: "prompt", prompt_long: "prompt", strength: "strength", weights_unknown: "lora", lora_base: "lora", lora_layout: "lora", lora_damaged: "lora", lora_nan: "lora", lora_gone: "lora" };
  function clearFieldErrors() {
    document.querySelectorAll(".rc-field-error").forEach((element) => element.remove());
    if (parts.go) tell(one(parts.go, ".rc-error"), "");
  }
  function fail(error) {
    const field = document.querySelector(`#rc-f-${FIELD_OF[error.code] ?? ""}`);
    if (!field) return tell(one(parts.go, ".rc-error"), error.message);
    foldSettings(true);
    field.closest("#rc-prompts, #rc-memory")?.querySelector(":scope > button:not(.open)")?.click();
    field.append(make("p", { className: "rc-error rc-field-error", role: "alert", textContent: error.message }));
    field.scrollIntoView({ block: "center" });
  }

  // ---- the LoRA version: what it is for, whether it fits, and what of the folder can't be used

  const looked = new Map(); // versions whose numbers were all looked at, by name and size
  const lookedKey = (info) => `${info.name}:${info.bytes}`;
  const versionName = (name) => {
    if (!name || name === boot.none) return T["set.version.none"];
    const info = state.weights.find((w) => w.name === name);
    return info?.version != null ? `v${info.version}` : info?.title ?? name;
  };
  const loraNames = (loras) => loras.map((ref) => versionName(ref.name) + (ref.strength === 1 ? "" : ` × ${ref.strength}`)).join(" + ") || T["set.version.none"];
  function drawVersion() {
    const root = parts.version;
    if (!root) return;
    const row = state.weights.find((info) => info.name === state.form?.lora);
    const info = row && (looked.get(lookedKey(row)) ?? row);
    const box = one(root, ".rc-version");
    show(box, Boolean(info));
    if (info) {
      const covered = info.total ? [t("set.coverage", { m: info.matched, n: info.total }), ...(info.rank ? [t("set.coverage.rank", { r: info.rank })] : [])].join(", ") : "";
      say(one(box, ".rc-about"), [info.recommendation && info.recommendation[0].toUpperCase() + info.recommendation.slice(1), covered].filter(Boolean).join(" · "));
      tell(one(box, ".rc-warned"), info.action === "accept" ? "" : info.reason);
      const picture = one(box, "img");
      show(picture, info.picture);
      if (info.picture && picture.dataset.of !== info.name) {
        picture.dataset.of = info.name;
        picture.alt = t("set.version.picture", { v: versionName(info.name) });
        picture.src = `/api/weights/picture?name=${encodeURIComponent(info.name)}`;
      }
      if (!looked.has(lookedKey(row))) lookAt(row);
    }
    const unusable = state.weights.filter((each) => each.action === "reject");
    const details = one(root, ".rc-unusable");
    show(details, unusable.length > 0);
    say(one(details, "summary"), t(unusable.length === 1 ? "set.version.unusable.one" : "set.version.unusable", { n: unusable.length }));
    one(details, "ul").replaceChildren(...unusable.map((each) => make("li", { textContent: each.reason })));
  }
  async function lookAt(row) {
    looked.set(lookedKey(row), row); // asked once
    try {
      looked.set(lookedKey(row), { ...row, ...(await api("GET", `/api/weights/check?name=${encodeURIComponent(row.name)}`)) });
      drawVersion();
    } catch { looked.delete(lookedKey(row)); /* asked again at the next change */ }
  }
  const LORAS = [["lora", "strength"], ["lora2", "strength2"], ["lora3", "strength3"]];
  const lorasOf = (form) => LORAS.filter(([lora]) => form[lora] && form[lora] !== boot.none).map(([lora, strength]) => ({ name: form[lora], strength: form[strength] }));
  const sameLoras = (a, b) => a.length === b.length && a.every((ref, i) => ref.name === b[i].name && ref.strength === b[i].strength);
  async function switchNow() {
    const job = jobs.get(state.focus), loras = lorasOf(state.form);
    detail(job.id).switching = true;
    render();
    try {
      await api("POST", `/api/jobs/${job.id}/weights`, { loras });
      toast(t("run.switch.asked", { v: loraNames(loras) }));
    } catch (error) {
      detail(job.id).switching = false;
      toast(error.message);
      render();
    }
  }
  let toastTimer = 0;
  function toast(text) {
    const element = one(parts.stage, ".rc-toast");
    tell(element, text);
    clearTimeout(toastTimer);
    toastTimer = setTimeout(() => show(element, false), 5000);
  }

  // ---- convert

  let last = { at: 0, text: "", key: "" };
  let sending = false;
  async function convert(values) {
    const form = named(values);
    clearFieldErrors();
    if (!state.online) return fail({ message: T["go.offline"] });
    if (!state.card) { one(document, "#rc-drop").focus(); return fail({ message: T["go.nopic"] }); }
    if (sending) return;
    const body = {
      upload: state.card.id,
      prompt: form.prompt,
      negative_prompt: form.negative || " ",
      steps: form.steps,
      cfg: form.cfg,
      seed: form.seed ?? -1,
      ...boot.sizes[form.size],
      ...machine(form),
      strategy: form.strategy === "auto" ? null : form.strategy, // as the app is set
      tile: form.tile || null,
      loras: lorasOf(form),
      preset: form.preset,
      stamp: form.stamp,
    };
    await submit(() => {
      // A second press of the same thing within a second is the same job.
      const text = JSON.stringify(body);
      const again = last.text === text && performance.now() - last.at < 1000;
      const key = again ? last.key : Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, "0")).join("");
      last = { at: performance.now(), text, key };
      return api("POST", "/api/jobs", { ...body, key });
    }, state.card);
  }
  async function submit(send, card) {
    sending = true;
    try {
      const job = await send();
      merge(job);
      if (card) cards.set(job.id, card);
      look(job.id);
      if (matchMedia("(max-width: 720px)").matches) one(parts.stage, "h2").scrollIntoView({ block: "start" });
    } catch (error) {
      if (error.code === "upload_gone") setCard(null);
      fail(error);
    } finally {
      sending = false;
    }
  }
  async function cancel(wanted) {
    const job = jobs.get(wanted ?? state.focus);
    if (!job || ended(job)) return;
    job.cancelling = true;
    render();
    try {
      merge(await api("POST", `/api/jobs/${job.id}/cancel`));
    } catch (error) {
      job.cancelling = false;
      fail(error);
    }
    render();
  }
  function again() {
    const job = jobs.get(state.focus);
    if (!job) return;
    const card = cards.get(job.id);
    if (job.state !== "done") return submit(() => api("POST", `/api/jobs/${job.id}/retry`), card);
    // The same seed would give the same picture.
    return submit(() => api("POST", "/api/jobs", { ...job.request, seed: -1, upload: job.upload }), card);
  }
  function merge(job) {
    const known = jobs.get(job.id);
    // An answer that was on its way can be older than what the live line said meanwhile.
    const rank = (each) => (ended(each) ? 2 : each.state === "running" ? 1 : 0);
    const older = known && (job.attempt < known.attempt || (job.attempt === known.attempt && rank(job) < rank(known)));
    jobs.set(job.id, older ? { ...job, ...known } : { ...known, ...job });
  }

  // ---- picture: drop, paste, choose, examples; the card of what the model will see

  let sendingFile = null;
  function mountDrop(root) {
    const zone = one(root, ".rc-drop");
    const input = one(root, ".rc-file");
    one(zone, ".rc-drop-icon").append(icon("picture"));
    say(one(zone, "small"), t("drop.kinds", { mb: boot.upload_mb }));
    zone.addEventListener("click", () => input.click());
    zone.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) return;
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); input.click(); }
    });
    input.addEventListener("change", () => { take(input.files); input.value = ""; });
    one(root, ".rc-upload button").addEventListener("click", () => sendingFile?.abort());
    const list = one(root, ".rc-examples ul");
    boot.samples.forEach((name, i) => {
      const source = `/rc/samples/${encodeURIComponent(name)}`;
      const button = make("button", { type: "button", ariaLabel: t("drop.example", { n: i + 1 }) }, make("img", { src: source, alt: "", loading: "lazy" }));
      button.addEventListener("click", async () => {
        try {
          const blob = await (await fetch(source)).blob();
          upload(new File([blob], name, { type: blob.type }));
        } catch {
          dropError(T["err.example"]);
        }
      });
      list.append(make("li", {}, button));
    });
    const id = store.get("rc_upload");
    const query = cardQuery();
    if (id && !state.card) api("GET", `/api/uploads/${encodeURIComponent(id)}?${query}`).then((card) => { if (!state.card && !sendingFile) setCard(card, query, true); }, () => store.set("rc_upload", null));
    drawDrop();
  }
  const dropError = (text) => tell(one(parts.drop, ".rc-error"), text);
  const dropNote = (text) => tell(one(parts.drop, ".rc-note"), text);
  function take(files) {
    if (!files?.length) return;
    upload(files[0]);
    if (files.length > 1) dropNote(t("drop.first", { n: files.length }));
  }
  // What a job chooses about the machine; null: as the app is set.
  const machine = (form) => ({
    offload: form?.offload !== "auto" && boot.choices.offload.includes(form?.offload) ? form.offload : null,
    vram: Math.min(form?.vram ?? 0, boot.most_vram) || null,
  });
  const cardQuery = () => {
    const size = boot.sizes[state.form?.size ?? kept?.size] ?? boot.sizes.safe;
    return Object.entries({ ...size, ...machine(state.form ?? kept) }).filter(([, value]) => value !== null).map(([name, value]) => `${name}=${value}`).join("&");
  };
  function upload(file) {
    dropError("");
    dropNote("");
    clearFieldErrors();
    if (file.size > boot.upload_mb * 1e6) return dropError(t("err.too_big", { mb: gb(file.size / 1e6), max: boot.upload_mb }));
    sendingFile?.abort();
    const request = new XMLHttpRequest();
    sendingFile = request;
    const finish = (text) => { if (sendingFile === request) sendingFile = null; if (text) dropError(text); drawDrop(); render(); };
    const query = cardQuery();
    request.open("PUT", `/api/uploads?${query}&name=${encodeURIComponent(file.name || "picture.png")}`);
    request.responseType = "json";
    request.upload.onprogress = (event) => drawUpload(event.total ? event.loaded / event.total : 0);
    request.onload = () => {
      if (request.status !== 201) return finish(request.response?.message ?? t("err.unknown", { status: request.status }));
      setCard(request.response, query);
      finish();
    };
    request.onerror = () => finish(T["go.offline"]);
    request.onabort = () => finish();
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.send(file);
    drawUpload(0);
    drawDrop();
    render();
  }
  function drawUpload(share) {
    const box = one(parts.drop, ".rc-upload");
    say(one(box, "span"), share < 1 ? t("drop.sending", { pct: Math.round(share * 100) }) : T["drop.preparing"]);
    one(box, ".rc-bar i").style.width = `${share * 100}%`;
  }
  let cardAsked = ""; // the choices that the card was asked for with
  function setCard(card, query = "", quietly = false) {
    state.card = card;
    cardAsked = query;
    if (card && query !== cardQuery()) refreshCard(); // they have changed meanwhile
    state.restoring = card?.params ?? null;
    store.set("rc_upload", card?.id ?? null);
    if (!quietly) state.focus = null;
    if (!quietly) store.set("rc_focus", null);
    drawDrop();
    render();
  }
  async function refreshCard() {
    const id = state.card.id, query = cardQuery();
    cardAsked = query;
    try {
      const card = await api("GET", `/api/uploads/${id}?${query}`);
      if (state.card?.id !== id || cardAsked !== query) return; // a later answer is on its way
      state.card = { ...card, params: state.card.params };
      drawDrop();
      render();
    } catch (error) {
      dropError(error.message);
    }
  }
  function drawDrop() {
    const root = parts.drop;
    if (!root) return;
    show(one(root, ".rc-drop"), !state.card && !sendingFile);
    show(one(root, ".rc-upload"), Boolean(sendingFile));
    show(one(root, ".rc-examples"), boot.samples.length > 0 && !state.card && !sendingFile);
    root.classList.toggle("rc-has-card", Boolean(state.card));
    const box = one(root, ".rc-card");
    show(box, Boolean(state.card) && !sendingFile);
    box.replaceChildren(...(state.card ? cardParts(state.card) : []));
  }
  function cardParts(card) {
    const [w, h] = card.source, [pw, ph] = card.prepared, [qw, qh] = card.padded;
    const size = w === pw && h === ph ? t("card.same", { w, h }) : t("card.size", { w, h, pw, ph });
    const memory = { gb: gb(card.need_gb), total: gb(card.total_gb), memory: card.memory.toUpperCase() };
    const notes = card.notes.filter((note) => note.code !== "resize").map((note) => make("li", { textContent: note.text }));
    if ((qw !== pw || qh !== ph) && !card.notes.some((note) => /pad|enlarge/.test(note.code))) notes.push(make("li", { textContent: t("card.padded", { w: qw, h: qh }) }));
    const button = (key, action) => { const b = make("button", { type: "button", className: "rc-button", textContent: T[key] }); b.addEventListener("click", action); return b; };
    const figure = (key, name, [width, height]) => {
      const image = make("img", { src: media(name), alt: "" });
      image.style.aspectRatio = `${width} / ${height}`;
      const picture = make("button", { type: "button", className: "rc-zoomable", ariaLabel: t("zoom.open", { name: T[key] }) }, image);
      picture.addEventListener("click", () => zoom(media(name), `${T[key]}: ${card.name}`));
      return make("figure", {}, picture, make("figcaption", { textContent: T[key] }));
    };
    return [
      make("div", { className: "rc-card-head" }, make("b", { className: "rc-name", textContent: card.name, title: card.name }),
        button("drop.change", () => one(parts.drop, ".rc-file").click()), button("drop.remove", () => { setCard(null); one(document, "#rc-drop").focus(); })),
      state.restoring && make("div", { className: "rc-ask" }, make("p", { textContent: T["card.params"] }), button("card.restore", restore), button("card.use", () => { state.restoring = null; drawDrop(); })),
      make("div", { className: "rc-pair" }, figure("card.original", card.original, card.prepared), figure("card.exact", card.exact, card.prepared)),
      make("p", { className: "rc-size", textContent: size }),
      make("p", { className: card.fits ? "rc-fits" : "rc-fits rc-tight" }, icon(card.fits ? "ok" : "warn"), t(card.fits ? "card.fits" : "card.tight", memory)),
      notes.length ? make("ul", { className: "rc-notes" }, ...notes) : null,
    ].filter(Boolean);
  }
  function restore() {
    const params = state.restoring;
    const versions = LORAS.map((_, i) => params.loras[i]?.name ?? boot.none);
    const unknown = versions.find((version) => !knownVersion(version));
    const size = params.long_edge ? "small" : params.size;
    change({
      preset: params.preset in boot.presets ? params.preset : "custom",
      ...Object.fromEntries(LORAS.flatMap(([lora, strength], i) => [...(knownVersion(versions[i]) ? [[lora, versions[i]]] : []), [strength, params.loras[i]?.strength ?? 1]])),
      cfg: params.cfg, steps: params.steps, seed: params.seed, size,
      prompt_set: promptSetOf(params.prompt), prompt: params.prompt, negative: params.negative_prompt.trim(), stamp: params.stamp,
    });
    setCard(null);
    dropNote(unknown ? t("card.restored.version", { v: unknown }) : T["card.restored"]);
    one(document, "#rc-drop").focus();
  }
  function acceptAnywhere() {
    let depth = 0;
    const over = (on) => document.body.classList.toggle("rc-dragging", on);
    document.addEventListener("dragenter", (event) => { if (event.dataTransfer?.types.includes("Files")) { depth += 1; over(true); } });
    document.addEventListener("dragleave", () => { depth = Math.max(0, depth - 1); if (!depth) over(false); });
    document.addEventListener("dragover", (event) => { if (event.dataTransfer?.types.includes("Files")) event.preventDefault(); });
    document.addEventListener("drop", (event) => {
      depth = 0;
      over(false);
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      take(event.dataTransfer.files);
    });
    document.addEventListener("paste", (event) => {
      if (event.target.closest?.("input, textarea")) return;
      const files = [...(event.clipboardData?.files ?? [])].filter((file) => file.type.startsWith("image/"));
      if (!files.length) return;
      event.preventDefault();
      take(files);
    });
  }

  // ---- enlarged picture

  function zoom(source, name) {
    const picture = make("img", { src: source, alt: name });
    const mode = make("button", { type: "button", className: "rc-button", textContent: T["zoom.full"] });
    const close = make("button", { type: "button", className: "rc-button", textContent: T["zoom.close"] });
    const dialog = make("dialog", { className: "rc-zoom", ariaLabel: name }, make("div", { className: "rc-zoom-bar" }, make("span", { textContent: name }), mode, close), make("div", { className: "rc-zoom-view", tabIndex: 0 }, picture));
    const toggle = () => say(mode, T[dialog.classList.toggle("rc-full-size") ? "zoom.fit" : "zoom.full"]);
    mode.addEventListener("click", toggle);
    picture.addEventListener("click", toggle);
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal(); // the browser gives the focus back on close
  }

  // ---- the stage

  let drawnResult = null;
  let previewWanted = 0;
  function mountStage(root) {
    one(root, ".rc-empty span").append(icon("before"));
    const range = one(root, ".rc-compare input");
    range.addEventListener("input", () => split(range.value));
    one(root, ".rc-cancel").addEventListener("click", () => cancel());
    one(root, ".rc-again").addEventListener("click", again);
    one(root, ".rc-switch").addEventListener("click", switchNow);
    one(root, ".rc-full").addEventListener("click", () => { const job = jobs.get(state.focus); if (job?.result) zoom(media(job.result.files.clean), `${T["res.after"]}: ${job.source_name}`); });
    setInterval(() => { if (jobs.get(state.focus)?.state === "running") drawTimes(); }, 1000);
    render();
  }
  function split(value) {
    const compare = one(parts.stage, ".rc-compare");
    compare.style.setProperty("--split", `${value}%`);
    one(compare, "input").setAttribute("aria-valuetext", t("res.value", { p: 100 - value }));
  }
  function look(id) { // make a job the one that the stage shows
    state.focus = id;
    store.set("rc_focus", id);
    const job = jobs.get(id);
    if (job && !job.result && !cards.has(id)) {
      api("GET", `/api/jobs/${id}`).then((full) => { if (full.card) cards.set(id, full.card); render(); }, () => {});
    }
    render();
  }
  const detail = (id) => { if (!live.has(id)) live.set(id, { degraded: [], curve: [] }); return live.get(id); };
  function render() {
    const root = parts.stage;
    if (!root) return;
    const job = jobs.get(state.focus);
    const said = job ? detail(job.id) : null;
    const card = job ? cards.get(job.id) : state.card;
    const view = job ? job.state : sendingFile ? "preparing" : state.card ? "ready" : "empty";
    const box = one(root, ".rc-box");
    box.dataset.view = view;
    const size = said?.prepared ?? card?.prepared;
    box.style.setProperty("--ratio", size ? `${size[0]} / ${size[1]}` : "");
    box.style.setProperty("--wide", size ? String(size[0] / size[1]) : "");
    show(one(root, ".rc-empty"), view === "empty" || view === "preparing");
    drawCompare(job);
    drawShown(view, job, said, card);
    tell(one(root, ".rc-veil"), veil(view, job));
    drawRun(view, job, said);
    tell(one(root, ".rc-error"), trouble(view, job));
    const finished = job && ended(job);
    show(one(root, ".rc-actions"), Boolean(finished));
    say(one(root, ".rc-again"), view === "done" ? T["res.again.seed"] : view === "cancelled" ? T["res.again"] : T["res.retry"]);
    say(one(root, ".rc-facts"), view === "done" ? facts(job) : "");
    drawMini();
    drawChip();
    drawJobs();
  }
  function veil(view, job) {
    if (view === "preparing") return T["run.preparing"];
    if (view === "ready") return T["run.ready"];
    if (view === "cancelled") { const s = live.get(job.id)?.step; return s ? t("run.cancelled.at", s) : T["run.cancelled"]; }
    if (view !== "queued") return "";
    if (job.cancelling) return T["run.cancelling"];
    if (["starting", "loading"].includes(state.engine.state)) return T["run.wait_base"];
    if (state.engine.state === "restarting") return T["run.restarting"];
    return job.position > 1 ? t("run.queued", { p: ordinal(job.position) }) : T["run.next"];
  }
  const ordinal = (n) => `${n}${{ one: "st", two: "nd", few: "rd" }[new Intl.PluralRules("en", { type: "ordinal" }).select(n)] ?? "th"}`;
  function trouble(view, job) {
    if (view === "failed") return job.error?.message ?? T["run.failed"];
    if (view === "interrupted") return T["run.interrupted"];
    return (view === "queued" || view === "running") && state.engine.state === "down" ? T["run.down"] : "";
  }
  function drawShown(view, job, said, card) {
    const picture = one(parts.stage, ".rc-shown");
    const preview = view === "running" ? said.preview : null;
    const source = preview?.src ?? (view !== "done" && card ? media(card.exact) : null);
    show(picture, Boolean(source) && view !== "empty");
    if (!source) return picture.removeAttribute("src");
    picture.alt = preview ? t("run.preview", preview) : `${T["card.exact"]}: ${job?.source_name ?? card.name}`;
    picture.classList.toggle("rc-is-preview", Boolean(preview));
    if (picture.getAttribute("src") === source) return;
    // Decoded aside and swapped whole, so that the box never blinks; skipped when a newer one came meanwhile.
    const turn = ++previewWanted;
    const spare = new Image();
    spare.src = source;
    const swap = () => { if (turn === previewWanted) picture.src = source; };
    spare.decode().then(swap, swap);
  }
  function drawCompare(job) {
    const root = parts.stage;
    const compare = one(root, ".rc-compare");
    const files = job?.state === "done" ? job.result?.files : null;
    show(compare, Boolean(files));
    for (const name of [".rc-stamped", ".rc-full"]) show(one(root, name), Boolean(files));
    show(one(root, ".rc-clean"), Boolean(files?.stamped));
    if (!files) { drawnResult = null; return; }
    if (drawnResult === job.id) return;
    drawnResult = job.id;
    const before = one(compare, ".rc-a"), after = one(compare, ".rc-b");
    before.src = media(files.before);
    before.alt = `${T["res.before"]}: ${job.source_name}`;
    after.src = media(files.clean);
    after.alt = `${T["res.after"]}: ${job.source_name}`;
    after.onload = () => { if (drawnResult === job.id && after.naturalWidth) { const box = one(root, ".rc-box"); box.style.setProperty("--ratio", `${after.naturalWidth} / ${after.naturalHeight}`); box.style.setProperty("--wide", String(after.naturalWidth / after.naturalHeight)); } };
    one(compare, "input").value = 50;
    split(50);
    const stamped = one(root, ".rc-stamped"), clean = one(root, ".rc-clean");
    stamped.href = media(files.stamped ?? files.clean, true);
    clean.href = media(files.clean, true);
  }
  function drawRun(view, job, said) {
    const root = one(parts.stage, ".rc-run");
    show(root, view === "queued" || view === "running");
    root.dataset.view = view;
    if (root.hidden) return;
    const step = said.step;
    say(one(root, ".rc-stage"), job.cancelling ? T["run.cancelling"] : view === "queued" ? T["jobs.queued"] : T[`run.${said.stage ?? "start"}`]);
    say(one(root, ".rc-step"), step ? t("run.step", step) : "");
    const bar = one(root, ".rc-bar");
    const n = step?.n ?? job.request.steps, i = step?.i ?? 0;
    bar.setAttribute("aria-valuemax", n);
    bar.setAttribute("aria-valuenow", i);
    bar.setAttribute("aria-valuetext", step ? t("run.step", step) : one(root, ".rc-stage").textContent);
    one(bar, "i").style.width = `${(100 * i) / n}%`;
    bar.classList.toggle("rc-busy", view === "running" && (!step || i === n));
    say(one(root, ".rc-memory"), said.memory ? memoryText(said.memory) : "");
    const points = said.curve.slice(-60), top = Math.max(...points, 0.001) * 1.05, low = Math.min(...points, top) * 0.95;
    one(root, "polyline").setAttribute("points", points.map((v, k) => `${((k * 120) / Math.max(1, points.length - 1)).toFixed(1)},${(23 - (22 * (v - low)) / (top - low)).toFixed(1)}`).join(" "));
    one(root, "svg").style.visibility = points.length > 1 ? "visible" : "hidden";
    say(one(root, ".rc-plan"), planText(said.plan));
    const lines = [...(job.attempt > 1 ? [T["run.attempt"]] : []), ...said.degraded];
    const list = one(root, ".rc-degraded");
    if (list.childElementCount !== lines.length) list.replaceChildren(...lines.map((text) => make("li", {}, icon("warn"), text)));
    const button = one(root, ".rc-cancel");
    button.disabled = Boolean(job.cancelling) || !state.online;
    say(button, job.cancelling ? T["run.cancelling"] : T["run.cancel"]);
    const other = one(root, ".rc-switch"), last = step && step.i >= step.n;
    show(other, Boolean(view === "running" && !job.cancelling && !last && state.opened && state.form?.lora && !sameLoras(lorasOf(state.form), job.request.loras)));
    other.disabled = Boolean(said.switching) || !state.online;
    say(other, t("run.switch", { v: loraNames(lorasOf(state.form ?? {})) }));
    drawTimes();
  }
  const planText = (plan) => plan ? [
    t(plan.mode === "resident" ? "run.plan.all" : "run.plan.text", plan),
    ...(plan.precision && plan.precision !== "bf16" ? [plan.precision] : []),
    ...(plan.compiled ? [T["run.plan.compiled"]] : []),
    ...(plan.vae_tiles > 1 ? [t("run.plan.tiles", { n: plan.vae_tiles })] : []),
  ].join(" · ") : "";
  function drawTimes() {
    const job = jobs.get(state.focus), said = job && live.get(job.id);
    const line = one(parts.stage, ".rc-time");
    if (job?.state !== "running") return say(line, "");
    const step = said?.step;
    if (!step) return say(line, job.started ? t("run.elapsed", { t: clock(Date.now() / 1000 - job.started) }) : "");
    const since = state.online ? (performance.now() - step.at) / 1000 : 0;
    const left = step.i < 2 ? T["run.measuring"] : t("run.left", { t: clock(step.eta_s - since) });
    say(line, `${t("run.elapsed", { t: clock(step.elapsed_s + since) })} · ${step.i < step.n ? left : ""}`.replace(/ · $/, ""));
  }
  const memoryText = (m) => t(`run.${m.memory}`, { used: gb(m.used_gb), total: gb(m.total_gb) });
  function facts(job) {
    const r = job.request, params = job.result.params;
    const version = [params?.loras ?? r.loras, ...(params?.switches ?? []).map((each) => each.loras)].map(loraNames).join(" → ");
    return t("res.facts", { version, cfg: r.cfg, steps: r.steps, seed: r.seed, t: clock(job.result.seconds) });
  }
  let announced = "";
  function announce(text) { if (text !== announced && parts.stage) { announced = text; say(one(parts.stage, ".rc-live"), text); } }
  function mountGo(root) {
    one(root, ".rc-mini button").addEventListener("click", () => cancel(miniJob()?.id));
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      document.activeElement?.blur?.(); // text fields hand their value to Gradio before the button reads it
      setTimeout(() => one(document, "#rc-convert").click(), 60);
    }, true);
    document.addEventListener("keydown", (event) => { if (event.key === "Escape") sendingFile?.abort(); });
  }
  function miniJob() { // the job of the phone's bottom bar: the one on the stage, else the one that runs, else the next
    const job = jobs.get(state.focus), all = [...jobs.values()];
    if (job && !ended(job)) return job;
    return all.find((other) => other.state === "running") ?? all.filter((other) => other.state === "queued").sort((a, b) => a.created - b.created)[0];
  }
  function drawMini() {
    if (!parts.go) return;
    const mini = one(parts.go, ".rc-mini"), job = miniJob(), said = job && live.get(job.id);
    show(mini, Boolean(job));
    if (!job) return;
    const at = said?.step ? t("run.step", said.step) : T[`run.${said?.stage ?? "start"}`];
    say(one(mini, "span"), job.cancelling ? T["run.cancelling"] : job.state === "queued" ? T["jobs.queued"] : at);
    one(mini, "button").disabled = Boolean(job.cancelling) || !state.online;
  }

  // ---- header, settings, jobs

  function drawChip() {
    if (!parts.header) return;
    const chip = one(parts.header, ".rc-chip");
    const engine = state.online ? state.engine.state : "offline";
    const running = [...jobs.values()].find((job) => job.state === "running");
    const memory = (running && live.get(running.id)?.memory) ?? state.stats?.memory;
    const device = memory?.memory === "ram" ? T["chip.ram"] : state.engine.device ?? "GPU";
    const ready = memory ? t("chip.ready", { device, used: gb(memory.used_gb), total: gb(memory.total_gb) }) : T["chip.ready.plain"];
    chip.dataset.state = engine;
    say(one(chip, ".rc-wide"), engine === "ready" ? ready : T[`chip.${engine}`] ?? T["chip.starting"]);
    say(one(chip, ".rc-narrow"), T[`chip.short.${engine}`] ?? T["chip.short.starting"]);
    const button = one(document, "#rc-convert");
    if (button) { button.setAttribute("aria-disabled", String(!state.online)); button.title = state.online ? "" : T["go.offline"]; }
  }
  const THEMES = ["system", "light", "dark"];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  function applyTheme() {
    const chosen = store.get("rc_theme") ?? "system";
    const want = chosen === "dark" || (chosen === "system" && dark.matches);
    if (document.body.classList.contains("dark") !== want) document.body.classList.toggle("dark", want);
    document.documentElement.style.background = want ? "#161514" : "#f6f5f3";
    document.documentElement.style.colorScheme = want ? "dark" : "light";
    const button = parts.header && one(parts.header, ".rc-theme");
    if (!button) return;
    button.ariaLabel = button.title = t("nav.theme", { name: T[`nav.theme.${chosen}`] });
    if (button.dataset.theme !== chosen) button.replaceChildren(icon({ system: "screen", light: "sun", dark: "moon" }[chosen]));
    button.dataset.theme = chosen;
  }
  function mountHeader(root) {
    const theme = one(root, ".rc-theme");
    theme.addEventListener("click", () => { store.set("rc_theme", THEMES[(THEMES.indexOf(theme.dataset.theme) + 1) % 3]); applyTheme(); });
    applyTheme();
    new MutationObserver(applyTheme).observe(document.body, { attributeFilter: ["class"] }); // Gradio sets it from the system
    dark.addEventListener("change", applyTheme);
    const banner = one(root, ".rc-banner");
    say(one(banner, "p"), boot.notice);
    one(banner, "button").append(icon("close"));
    one(banner, "button").addEventListener("click", () => { store.set("rc_banner", boot.notice); show(banner, false); });
    show(banner, Boolean(boot.notice) && store.get("rc_banner") !== boot.notice);
    one(root, ".rc-updated button").addEventListener("click", () => location.reload());
    drawChip();
  }
  function foldSettings(open) {
    if (!parts.settings) return;
    one(parts.settings, ".rc-fold").setAttribute("aria-expanded", String(open));
    document.body.classList.toggle("rc-settings-open", open);
  }
  function mountSettings(root) {
    one(root, ".rc-fold").addEventListener("click", () => foldSettings(!document.body.classList.contains("rc-settings-open")));
  }
  function drawJobs() {
    const root = parts.jobs;
    if (!root) return;
    const list = one(root, "ul");
    const shown = [...jobs.values()].sort((a, b) => b.created - a.created).slice(0, 50);
    show(one(root, ".rc-quiet"), !shown.length);
    const known = new Map([...list.children].map((item) => [item.dataset.id, item]));
    shown.forEach((job, place) => {
      let item = known.get(job.id);
      if (!item) {
        const picture = make("img", { alt: "" });
        picture.addEventListener("error", () => { picture.style.visibility = "hidden"; });
        picture.addEventListener("load", () => { picture.style.visibility = ""; });
        const button = make("button", { type: "button" }, picture, make("span"));
        button.addEventListener("click", () => { look(job.id); one(parts.stage, ".rc-box").scrollIntoView({ block: "nearest" }); });
        item = make("li", {}, button);
        item.dataset.id = job.id;
      }
      known.delete(job.id);
      if (list.children[place] !== item) list.insertBefore(item, list.children[place] ?? null);
      const button = one(item, "button"), picture = one(item, "img"), step = live.get(job.id)?.step;
      const thumb = `/api/jobs/${job.id}/thumb${job.result ? "?done" : ""}`;
      if (picture.getAttribute("src") !== thumb) picture.src = thumb;
      const words = job.state === "running" && step ? `${step.i}/${step.n}` : T[`jobs.${job.state}`];
      item.dataset.state = job.state;
      say(one(item, "span"), words);
      picture.alt = job.source_name;
      button.title = job.source_name;
      button.setAttribute("aria-current", String(job.id === state.focus));
    });
    known.forEach((item) => item.remove());
  }

  // ---- the live line: one EventSource while the tab is seen

  const line = { source: null, seen: 0, hello: 0, heard: 0, lostTimer: 0, closeTimer: 0 };
  function openLine() {
    clearTimeout(line.closeTimer);
    if (line.source && line.source.readyState !== EventSource.CLOSED) return;
    const source = line.source = new EventSource(`/api/events${line.seen ? `?after=${line.seen}` : ""}`);
    line.heard = performance.now();
    source.onopen = () => heard();
    source.onerror = () => {
      line.lostTimer ||= setTimeout(() => { state.online = false; render(); }, 2000);
      // After some answers the browser gives up for good.
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { if (line.source === source && !document.hidden) openLine(); }, 2000);
    };
    for (const [kind, handle] of Object.entries(handlers)) {
      source.addEventListener(kind, (event) => {
        heard();
        if (event.lastEventId) line.seen = Math.max(line.seen, Number(event.lastEventId));
        handle(JSON.parse(event.data), Number(event.lastEventId));
      });
    }
  }
  function closeLine() { line.source?.close(); line.source = null; clearTimeout(line.lostTimer); line.lostTimer = 0; }
  function heard() {
    line.heard = performance.now();
    clearTimeout(line.lostTimer);
    line.lostTimer = 0;
    if (!state.online) { state.online = true; clearFieldErrors(); render(); }
  }
  const handlers = {
    hello(data, id) {
      line.hello = id;
      line.seen = id;
      if (line.version && line.version !== data.version && parts.header) show(one(parts.header, ".rc-updated"), true);
      line.version = data.version;
      state.engine = data.engine;
      state.stats = data.stats;
      jobs.clear();
      data.jobs.forEach((job) => jobs.set(job.id, job));
      const wanted = state.focus ?? store.get("rc_focus");
      const busy = data.jobs.find((job) => job.state === "running") ?? data.jobs.find((job) => job.state === "queued");
      if (jobs.has(wanted)) look(wanted);
      else if (busy && !state.card) look(busy.id);
      else { state.focus = null; render(); }
    },
    beat() {},
    stats(data) {
      state.stats = data;
      for (const [id, position] of Object.entries(data.positions)) if (jobs.has(id)) jobs.get(id).position = position;
      render();
    },
    async weights() {
      try {
        state.weights = await api("GET", "/api/weights");
        drawVersion();
        one(document, "#rc-refresh").click();
      } catch { /* the next page load brings them */ }
    },
    engine(data) { state.engine = data; render(); },
    job(data, id) {
      if (id <= line.hello) return; // `hello` was newer
      const job = jobs.get(data.job);
      if (!job) return void refetch(data.job);
      const restarted = data.attempt > job.attempt || (data.state === "queued" && job.state === "running");
      if (restarted) live.delete(job.id);
      Object.assign(job, { state: data.state, error: data.error ?? null, attempt: data.attempt });
      if (data.state === "running") job.started ??= Date.now() / 1000;
      if (ended(job)) { job.cancelling = false; refetch(job.id); }
      if (job.id === state.focus && job.state !== "done") announce(job.state === "failed" ? "" : T[`jobs.${job.state}`]);
      // A job that is done waits for its files, so that the slider never shows without them.
      if (job.state === "done" && !job.result) { job.state = "running"; detail(job.id).stage = "finish"; }
      render();
    },
    stage(data) {
      detail(data.job).stage = data.stage;
      if (data.job === state.focus) announce(T[`run.${data.stage}`] ?? "");
      render();
    },
    prepared(data) { detail(data.job).prepared = data.prepared; render(); },
    plan(data) { detail(data.job).plan = data; render(); },
    step(data) {
      const said = detail(data.job);
      said.step = { ...data, preview: undefined, at: performance.now() };
      if (data.preview) said.preview = { src: data.preview, i: data.i, n: data.n };
      const quarter = Math.floor((4 * data.i) / data.n);
      if (data.job === state.focus && quarter !== said.quarter && quarter > 0) announce(t("run.step", data));
      said.quarter = quarter;
      render();
    },
    memory(data) {
      if (!data.job) { if (state.stats) state.stats.memory = data; return render(); }
      const said = detail(data.job);
      said.memory = data;
      said.curve.push(data.used_gb);
      render();
    },
    in_effect(data, id) {
      const job = jobs.get(data.job), said = detail(data.job);
      said.switching = false;
      if (job && data.step != null) job.request.loras = data.loras;
      if (data.job === state.focus && id > line.hello) toast(t("run.in_effect", { v: loraNames(data.loras), t: data.seconds.toFixed(1) }));
      render();
    },
    degraded(data) {
      if (data.code === "switch") detail(data.job).switching = false;
      const what = data.text ?? `${data.code.replaceAll("_", " ")} ${Object.entries(data.args ?? {}).map(([k, v]) => `${k} ${v}`).join(", ")}`.trim();
      const text = ["switch", "slow"].includes(data.code) ? what[0].toUpperCase() + what.slice(1) : t("run.degraded", { what });
      if (!detail(data.job).degraded.includes(text)) detail(data.job).degraded.push(text);
      if (data.job === state.focus) announce(text);
      render();
    },
    saved() {},
  };
  async function refetch(id) {
    try {
      const job = await api("GET", `/api/jobs/${id}`);
      if (job.card) cards.set(id, job.card);
      delete job.card;
      merge(job);
      if (job.state === "done" && id === state.focus) announce(T["res.done"]);
      render();
    } catch { /* the next hello brings it */ }
  }
  function watchLine() {
    document.addEventListener("visibilitychange", () => {
      // Browsers allow six connections to a host: a tab that nobody sees gives its one back.
      if (document.hidden) line.closeTimer = setTimeout(closeLine, 5000);
      else openLine();
    });
    for (const name of ["online", "pageshow"]) window.addEventListener(name, () => { if (!document.hidden) openLine(); });
    setInterval(() => {
      if (!line.source || performance.now() - line.heard < 25000) return;
      state.online = false; // a silent line is a dead one: the server beats every ten seconds
      closeLine();
      render();
      if (!document.hidden) openLine();
    }, 5000);
    window.addEventListener("pagehide", closeLine);
    if (!document.hidden) openLine();
  }

  const mounts = { header: mountHeader, drop: mountDrop, go: mountGo, stage: mountStage, version: drawVersion, settings: mountSettings, jobs: drawJobs };
  window.rc = {
    mount(name, element) { parts[name] = element; mounts[name](element); },
    convert, save, applied, opened: openedForm, preset, presetOf, promptOf, promptSetOf, strengthFor, newSeed,
    state, jobs, live, // for a look from the console
  };
  acceptAnywhere();
  watchLine();
})();
