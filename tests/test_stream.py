"""Streamed blocks against resident ones: the same bits, whatever is resident, added, cancelled or wrong with the files."""

from __future__ import annotations

import itertools
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from realchar.catalog import load_base
from realchar.engine.accelerator import Cpu
from realchar.engine.blocks import StreamedBlocks, stream_transformer
from realchar.engine.lora import AdapterSet
from realchar.engine.pipeline import Engine
from realchar.engine.weights import WeightSource
from realchar.errors import InvalidInput, ModelError, OutOfMemory
from realchar.schema import Decoded, EditRequest, Planned, Stage, Tick
from realchar.settings import Offload
from tests.streams import (
    ATTENTION,
    EVERY_KIND,
    MLP,
    MODULATION,
    TIME,
    LaggingCopies,
    denoise,
    digests,
    resident,
    write_lora,
)
from tests.tiny import DEMO, DEVICE, copy_base

FOLDER = DEMO / "transformer"
NUM_BLOCKS = 8
CPU, CARD = torch.device("cpu"), torch.device("cuda")

pytestmark = pytest.mark.usefixtures("two_threads")


def streamed(folder: Path = FOLDER, dtype: torch.dtype = torch.float32, **options: Any) -> tuple[Any, StreamedBlocks]:
    transformer, blocks = stream_transformer(folder, options.pop("device", CPU), dtype, **options)
    return transformer.eval().requires_grad_(False), blocks


def altered(tmp_path: Path, **config: object) -> Path:
    return copy_base(tmp_path / "base", **config) / "transformer"


@pytest.mark.parametrize("zero_cond_t", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_latents_equal_the_resident_ones(tmp_path: Path, zero_cond_t: bool, dtype: torch.dtype) -> None:
    folder = altered(tmp_path, zero_cond_t=zero_cond_t)
    plain = resident(folder, dtype)
    for cfg in (True, False):
        expected = denoise(*plain, cfg=cfg)
        assert torch.isfinite(expected).all()
        for number in (0, 1, NUM_BLOCKS // 2, NUM_BLOCKS):
            model = streamed(folder, dtype, resident=number)
            assert model[1].num_resident == number
            assert torch.equal(denoise(*model, cfg=cfg), expected), (cfg, number)


@pytest.mark.parametrize("slots", [1, 2, 3, NUM_BLOCKS, 2 * NUM_BLOCKS])
@pytest.mark.parametrize("number", [0, 3, 7])
def test_any_number_of_slots_with_copies_that_lag(slots: int, number: int) -> None:
    model = streamed(resident=number, slots=slots, accelerator=LaggingCopies())
    expected = denoise(*resident(FOLDER))
    for _ in range(2):
        assert torch.equal(denoise(*model), expected)


class Ordered(Cpu):
    """Marks are numbers that grow: of two, the later one is the larger."""

    def __init__(self) -> None:
        super().__init__()
        self.now = itertools.count(1)
        self.arrival: dict[int, int] = {}  # by the address of the buffer that was filled
        self.ran: dict[int, int] = {}  # when what is in it was last asked to run
        self.waited = 0

    def submit(self, task: Any, after: Any) -> Any:
        buffer = task.args[0].data_ptr()
        assert after > self.ran.get(buffer, 0)
        task()
        self.arrival[buffer] = self.mark()
        return self.arrival[buffer]

    def mark(self) -> Any:
        return next(self.now)

    def wait(self, mark: Any) -> None:
        self.waited = max(self.waited, mark)


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("number", [0, 3])
def test_a_block_runs_after_its_arrival_and_is_replaced_after_its_run(slots: int, number: int) -> None:
    """The order that a card is told, which the CPU keeps by itself."""
    order = Ordered()
    _, blocks = streamed(resident=number, slots=slots, accelerator=order)
    for stop in (3, 8, 5, 8, 8):
        with closing(blocks.step()) as ready:
            for block in itertools.islice(ready, stop):
                weight = block.get_parameter("attn.to_q.weight")
                buffer = weight.untyped_storage().data_ptr()
                assert order.waited >= order.arrival[buffer]
                order.ran[buffer] = next(order.now)
        if stop == 5:
            blocks.patch({})
    assert len(order.ran) == slots + number


def test_only_slots_and_resident_blocks_are_held() -> None:
    transformer, blocks = streamed(resident=2)
    block = sum(
        entry.stop - entry.start
        for name, entry in WeightSource(FOLDER).entries.items()
        if name.startswith("transformer_blocks.0.") and "_mod." not in name
    )
    float32 = 2  # the file is bfloat16
    assert blocks._stream.num_bytes == 4 * block * float32
    denoise(transformer, blocks)
    held = {name for name, parameter in transformer.named_parameters() if parameter.numel()}
    assert {name.split(".")[1] for name in held if name.startswith("transformer_blocks.")} == {"0", "4"}
    assert not [name for name in held if "_mod." in name]
    assert not [name for name, parameter in transformer.named_parameters() if parameter.is_meta]


@pytest.mark.parametrize("number", [pytest.param(0, marks=pytest.mark.slow), 4])
def test_switching_versions_gives_the_resident_bits_and_never_drifts(tmp_path: Path, number: int) -> None:
    plain, model = resident(FOLDER), streamed(resident=number, accelerator=LaggingCopies(lag_s=0.0005))
    first = write_lora(tmp_path / "1.safetensors", plain[0], seed=1)
    second = write_lora(tmp_path / "2.safetensors", plain[0], (ATTENTION, MLP), seed=2)
    pristine = denoise(*plain)
    ours, theirs = AdapterSet(*model), AdapterSet(*plain)
    versions = [[(first, 1.0)], [], [(second, 0.7)], [(first, -0.4), (second, 1.3)]]
    expected = []
    for chosen in versions:
        theirs.use(chosen)
        expected.append(denoise(*plain))
    assert torch.equal(expected[1], pristine) and len({float(e.sum()) for e in expected}) == 4
    for i in range(20):
        ours.use(versions[i % 4])
        assert torch.equal(denoise(*model), expected[i % 4]), i
    ours.use([])
    assert torch.equal(denoise(*model), pristine)


def test_a_version_waits_on_the_host_and_passes_through_the_slots(tmp_path: Path) -> None:
    plain, model = resident(FOLDER), streamed(resident=2)
    blocks = model[1]
    before = blocks.num_bytes
    names = tuple(f"transformer_blocks.{i}.img_mlp.net.2" for i in (1, 3, 7))
    file = write_lora(tmp_path / "1.safetensors", plain[0], (*names, ATTENTION, MODULATION), rank=8)
    AdapterSet(*plain).use([(file, 1.0)])
    adapters = AdapterSet(*model)
    adapters.use([(file, 1.0)])
    linear = plain[0].get_submodule(names[0])
    attention = plain[0].get_submodule(ATTENTION)
    of_one_block = 8 * 4 * (linear.in_features + linear.out_features)
    most = of_one_block + 8 * 4 * (attention.in_features + attention.out_features)
    assert before + of_one_block <= blocks.num_bytes <= before + most
    file.write_bytes(b"")  # whoever replaces a file must not change what is in effect, or end the process
    assert torch.equal(denoise(*model), denoise(*plain))
    blocks.keep(0)  # more blocks pass through the slots: theirs are patched as well
    assert torch.equal(denoise(*model), denoise(*plain))
    adapters.use([])
    assert blocks.num_bytes == streamed(resident=0)[1].num_bytes


@pytest.mark.parametrize("module", [ATTENTION, MLP, MODULATION, TIME, "proj_out"])
def test_every_kind_of_module_has_its_effect(tmp_path: Path, module: str) -> None:
    plain, model = resident(FOLDER), streamed(resident=2)
    pristine = denoise(*plain)
    path = write_lora(tmp_path / "x.safetensors", plain[0], (module,))
    for pair in (plain, model):
        AdapterSet(*pair).use([(path, 0.8)])
    changed = denoise(*plain)
    assert not torch.equal(changed, pristine)
    assert torch.equal(denoise(*model), changed)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
def test_in_bfloat16_the_sum_is_rounded_once(tmp_path: Path, stored: torch.dtype) -> None:
    folder = altered(tmp_path)
    file = folder / "diffusion_pytorch_model.safetensors"
    noise = 1 + 1e-3 * torch.rand(1, generator=torch.Generator().manual_seed(0))
    save_file({name: (tensor.float() * noise).to(stored) for name, tensor in load_file(file).items()}, file)
    plain, model = resident(folder, torch.bfloat16), streamed(folder, torch.bfloat16, resident=3)
    path = write_lora(tmp_path / "x.safetensors", plain[0])
    for pair in (plain, model):
        AdapterSet(*pair).use([(path, 0.8)])
    assert torch.equal(denoise(*model), denoise(*plain))


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("lag", [True, False])
def test_closing_at_any_block_leaves_the_next_run_right(number: int, lag: bool) -> None:
    transformer, blocks = streamed(resident=number, accelerator=LaggingCopies(lag_s=0.0005) if lag else None)
    expected = denoise(*resident(FOLDER))
    for stop in range(1, 2 * NUM_BLOCKS + 1):
        denoise(transformer, blocks, stop_after=stop)
        assert torch.equal(denoise(transformer, blocks), expected), stop


def test_an_error_in_a_block_leaves_the_next_run_right(monkeypatch: pytest.MonkeyPatch) -> None:
    transformer, blocks = streamed(resident=1)
    expected = denoise(transformer, blocks)

    def fail(**inputs: Any) -> Any:
        raise torch.OutOfMemoryError("no")

    for i in range(NUM_BLOCKS):
        with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
            patch.setattr(transformer.transformer_blocks[i], "forward", fail)
            denoise(transformer, blocks)
        assert torch.equal(denoise(transformer, blocks), expected), i


@pytest.mark.slow
@pytest.mark.parametrize("switched", [True, False])
def test_a_copy_that_fails_leaves_the_next_run_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switched: bool
) -> None:
    plain, (transformer, blocks) = resident(FOLDER), streamed(resident=2)
    path = write_lora(tmp_path / "x.safetensors", plain[0])
    AdapterSet(*plain).use([(path, 1.0)])
    expected = denoise(*plain)
    adapters = AdapterSet(transformer, blocks)
    adapters.use([(path, 1.0)])
    denoise(transformer, blocks)
    original = blocks._stream._host.upload
    for at in range(16):  # two copies a block
        left = itertools.count(-at)

        def fail(target: Any, span: Any, left: Any = left) -> None:
            if next(left) == 0:
                raise torch.OutOfMemoryError("no")
            original(target, span)

        if switched:
            adapters.use([])
            adapters.use([(path, 1.0)])
        with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
            patch.setattr(blocks._stream._host, "upload", fail)
            denoise(transformer, blocks)
        assert torch.equal(denoise(transformer, blocks), expected), at


def test_a_switch_that_fails_is_made_good_by_the_next_even_to_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for transformer, blocks in (resident(FOLDER), streamed(resident=8)):
        expected = denoise(transformer, blocks)
        path = write_lora(tmp_path / "x.safetensors", transformer)
        adapters = AdapterSet(transformer, blocks)
        original = blocks.patch

        def fail(patches: Any, original: Any = original) -> None:
            original(patches)
            raise torch.OutOfMemoryError("no")

        with monkeypatch.context() as patch, pytest.raises(torch.OutOfMemoryError):
            patch.setattr(blocks, "patch", fail)
            adapters.use([(path, 1.0)])
        assert not torch.equal(denoise(transformer, blocks), expected)
        adapters.use([])
        assert torch.equal(denoise(transformer, blocks), expected)


def test_nothing_is_ever_written_to_the_files(tmp_path: Path) -> None:
    folder = altered(tmp_path)
    before = digests(folder)
    transformer, blocks = streamed(
        folder, torch.bfloat16, resident=2
    )  # the dtype of the file: views need no conversion
    path = write_lora(tmp_path / "x.safetensors", transformer)
    adapters = AdapterSet(transformer, blocks)
    for versions in ([(path, 1.0)], [], [(path, -2.0)]):
        adapters.use(versions)
        denoise(transformer, blocks)
    assert digests(folder) == before


def shard(folder: Path) -> None:
    """Write the weights anew as three files and an index, blocks cut across them."""
    file = folder / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    file.unlink()
    names = sorted(tensors)
    parts = {f"model-{i + 1:05}-of-00003.safetensors": names[i::3] for i in range(3)}
    for part, own in parts.items():
        save_file({name: tensors[name] for name in own}, folder / part)
    index = {"metadata": {}, "weight_map": {name: part for part, own in parts.items() for name in own}}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def test_a_sharded_base_gives_the_same(tmp_path: Path) -> None:
    folder = altered(tmp_path)
    shard(folder)
    transformer, blocks = streamed(folder, resident=3)
    assert torch.equal(denoise(transformer, blocks), denoise(*resident(FOLDER)))
    path = write_lora(tmp_path / "x.safetensors", transformer)
    plain = resident(FOLDER)
    for pair in (plain, (transformer, blocks)):
        AdapterSet(*pair).use([(path, 0.5)])
    assert torch.equal(denoise(transformer, blocks), denoise(*plain))


def lose(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["transformer_blocks.4.attn.to_k.weight"]


def lose_outside(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["txt_norm.weight"]


def reshape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["transformer_blocks.4.img_mlp.net.2.bias"] = torch.zeros(191, dtype=torch.bfloat16)


@pytest.mark.parametrize("damage", [lose, lose_outside, reshape])
def test_weights_that_do_not_fit_are_named(tmp_path: Path, damage: Any) -> None:
    folder = altered(tmp_path)
    file = folder / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    damage(tensors)
    save_file(tensors, file)
    with pytest.raises(ModelError, match=r"can't be read .*(to_k|txt_norm|191).*copy the folder again"):
        streamed(folder)


@pytest.mark.parametrize("number", [-1, 9])
def test_more_resident_blocks_than_there_are_is_refused(number: int) -> None:
    with pytest.raises(InvalidInput, match=f"{number} resident blocks.*choose 0 to 8"):
        streamed(resident=number)


def test_the_engine_streams_and_says_so(tmp_path: Path) -> None:
    from PIL import Image

    request = EditRequest(prompt="Photo.", steps=2, cfg=3.0, seed=1)
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 64, 3), dtype=np.uint8), "RGB")
    results, plans, ticks = [], [], []
    for offload, number in ((Offload.RESIDENT, 0), (Offload.STREAM, 3)):
        engine = Engine.load(load_base(DEMO), "cpu", offload, number)
        path = write_lora(tmp_path / f"{offload}.safetensors", engine.family.transformer, EVERY_KIND)  # type: ignore[attr-defined]
        engine.family.adapters.use([(path, 1.0)])
        events = list(engine.run(request, picture, (0, 0, 64, 32), []))
        engine.family.adapters.use([(path, 1.0)])
        at = next(i for i, event in enumerate(events) if isinstance(event, Stage) and event.stage == "denoise")
        results.append(next(np.asarray(event.image) for event in events if isinstance(event, Decoded)))
        plans.append(next((e.mode, e.resident, e.blocks) for e in events if isinstance(e, Planned)))
        ticks.append(sum(isinstance(event, Tick) for event in events[at:]))
    assert np.array_equal(*results)
    assert plans == [("resident", 8, 8), ("stream", 3, 8)]
    assert ticks == [2 * NUM_BLOCKS, 3 * NUM_BLOCKS]  # the table's pass over the blocks can be closed as well


@pytest.mark.parametrize(
    ("offload", "sentence"), [(Offload.RESIDENT, "GB on cpu.*mode stream"), (Offload.STREAM, "0 res.*fewer")]
)
def test_a_base_that_does_not_fit_is_a_sentence_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, offload: Offload, sentence: str
) -> None:
    def fail(*args: Any) -> Any:
        raise torch.OutOfMemoryError("no")

    monkeypatch.setattr("realchar.engine.pipeline.QwenImageEdit.load", fail)
    with pytest.raises(OutOfMemory, match=sentence):
        Engine.load(load_base(DEMO), "cpu", offload)


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a card: TEST_DEVICE=cuda")
class TestOnACard:
    """What only a card can show: copies beside the computation, locked mappings, and no error left behind."""

    @pytest.mark.parametrize("number", [0, 1, 4, 8])
    @pytest.mark.parametrize("cfg", [True, False])
    def test_latents_equal_the_resident_ones(self, tmp_path: Path, number: int, cfg: bool) -> None:
        plain = resident(FOLDER, torch.bfloat16, "cuda")
        model = streamed(FOLDER, torch.bfloat16, resident=number, device=CARD)
        path = write_lora(tmp_path / "x.safetensors", plain[0])
        ours, theirs = AdapterSet(*model), AdapterSet(*plain)
        for i in range(20):
            versions = [(path, 0.3 * i)] if i % 2 else []
            ours.use(versions)
            theirs.use(versions)
            denoise(*model, cfg=cfg, stop_after=i)
            assert torch.equal(denoise(*model, cfg=cfg), denoise(*plain, cfg=cfg)), i

    def test_every_tier_gives_the_same_and_leaves_no_error(self) -> None:
        from realchar.engine.accelerator import Cuda

        class Refusing(Cuda):
            refuses: tuple[bool, ...] = ()

            def register(self, data: torch.Tensor, *, read_only: bool) -> str | None:
                return "refused" if read_only in self.refuses else super().register(data, read_only=read_only)

        expected = denoise(*resident(FOLDER, torch.bfloat16, "cuda"))
        tiers = []
        for refuses in ((), (True,), (True, False)):
            accelerator = Refusing(CARD)
            accelerator.refuses = refuses
            model = streamed(FOLDER, torch.bfloat16, device=CARD, accelerator=accelerator)
            tiers.append(model[1].choice.tier)
            assert torch.equal(denoise(*model), expected), model[1].choice
        assert tiers[1:] == ["pinned", "staging"]
        assert tiers[0] == "registered", "only Linux promises this"

    def test_a_refusal_leaves_no_error_behind(self) -> None:
        from realchar.engine.accelerator import Cuda

        source = WeightSource(FOLDER)
        data = source.mapping(next(iter(source.entries.values())).file)
        assert "error" in str(Cuda(CARD).register(data, read_only=False))  # a read-only mapping, asked as writable
        assert torch.ones(4, device=CARD).add_(1).sum().item() == 8
