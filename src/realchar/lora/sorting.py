"""The keys of a LoRA file by the modules that they belong to, and whose modules these are. No torch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from realchar.lora.containers import Refused
from realchar.lora.foreign import model_of
from realchar.lora.keys import UNREAD, Key, of_text_encoder, prefix_of, resolve, take_apart
from realchar.lora.target import Target

EMBEDDINGS = {"emb_params", "clip_l", "clip_g", "string_to_param", "learned_embeds"}


@dataclass
class Sorted:
    """`keys`: by owner (a module as the file writes it), kind and part; `ours`: the model's modules by owner.

    strange: owners that are no modules of the model; loose: keys that no layout knows, and alphas of nothing.
    """

    keys: dict[str, dict[str, dict[str, str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(dict)))
    alphas: dict[str, str] = field(default_factory=dict)
    ours: dict[str, str] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)
    loose: list[str] = field(default_factory=list)
    layouts: Counter[str] = field(default_factory=Counter)
    adapters: set[str] = field(default_factory=set)

    @property
    def format(self) -> str:
        """Return the layout in words: how factors are written, and what stands before the modules."""
        prefixes = Counter(prefix_of(owner, module) for owner, module in self.ours.items())
        prefix = prefixes.most_common(1)[0][0]
        layout = " + ".join(name for name, _ in self.layouts.most_common(2))
        return f"{layout}, {prefix!r} before the modules" if prefix else f"{layout}, bare modules"


def sort(names: Iterable[str], target: Target) -> Sorted:
    """Sort the names of a file's tensors. Raises Refused for what belongs to another model, or can't be told apart."""
    found = Sorted()
    for name in names:
        key = take_apart(name)
        if key is None:
            found.loose.append(name)
        else:
            _add(found, key, name)
    for owner in found.keys:
        module = resolve(owner, target)
        if module is None:
            found.strange.append(owner)
        else:
            found.ours[owner] = module
    found.loose += (key for owner, key in found.alphas.items() if owner not in found.keys)
    _refuse_foreign(found)
    twice = [module for module, times in Counter(found.ours.values()).items() if times > 1]
    if twice:
        raise Refused("lora_layout", f"holds {twice[0]!r} twice, under different names; save it anew.")
    return found


def _add(found: Sorted, key: Key, name: str) -> None:
    if key.layout.kind == "alpha":
        found.alphas[key.owner] = name
        return
    found.layouts[key.layout.name] += 1
    found.adapters.add(key.adapter)
    parts = found.keys[key.owner][key.layout.kind]
    if key.part in parts:
        adapters = ", ".join(repr(adapter) for adapter in sorted(filter(None, found.adapters)))
        what = f"holds several adapters ({adapters})" if adapters else f"holds {short(key.owner)} twice"
        raise Refused("lora_layout", f"{what}; save each into a file of its own.")
    parts[key.part] = name


def _refuse_foreign(found: Sorted) -> None:
    """Raise Refused where a file belongs to another model, or adds nothing to this one."""
    texts = [owner for owner in found.strange if of_text_encoder(owner)]
    other = model_of(found.strange if not found.ours else [o for o in found.strange if o not in texts])
    if other is not None:
        raise Refused("lora_base", f"was made for {other}, not for this base; choose a version made for it.")
    if found.ours:
        return
    unread = next((kind for kind, pattern in UNREAD.items() if any(pattern.search(k[-80:]) for k in found.loose)), None)
    if unread is not None:
        raise Refused("lora_layout", f"is {unread}, which can't be read; choose a LoRA, LoKr, LoHa or DoRA.")
    everything = [*found.strange, *found.loose]
    if all(map(of_text_encoder, everything)):
        raise Refused("lora_base", "changes the text encoder only, which stays as it is here; choose another.")
    if found.strange:
        first = next(owner for owner in found.strange if owner not in texts or len(texts) == len(found.strange))
        raise Refused(
            "lora_base",
            f"was made for another model: none of its {len(found.strange)} modules is in this base (first: "
            f"{short(first)}); choose a version made for it.",
        )
    raise Refused("lora_layout", _what_else(found.loose))


def _what_else(loose: list[str]) -> str:
    if EMBEDDINGS & set(loose):
        return "is an embedding, not a LoRA; embeddings can't be used here."
    if sum(name.endswith((".weight", ".bias")) for name in loose) * 2 > len(loose):
        other = model_of(loose)
        whose = f" ({other})" if other else ""
        return f"holds whole weights of a model{whose}, it is no LoRA; a base is chosen with --base."
    return f"has keys that match no known layout (first: {short(loose[0])}); save it in PEFT's layout."


def short(name: str) -> str:
    """Return a name as a sentence may hold it."""
    return repr(name if len(name) <= 80 else f"{name[:77]}…")
