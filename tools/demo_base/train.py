"""Train the demo base on rendered pairs, one part after the other; the text encoder stays as drawn.

    python -m tools.demo_base.train vae --pairs DIR --out new --seconds 430
    python -m tools.demo_base.train texture --pairs DIR --out new --seconds 430
    python -m tools.demo_base.train transformer --pairs DIR --out new --seconds 560 --base-seconds 330

`--out` is a base folder; where it is none yet, the untrained one is written first. `--more DIR` gives pairs of other
characters, all for training. `texture` trains the end of the VAE's decoder; a CPU will do. `transformer` trains the base's transformer and then, until `--seconds` after its start,
the LoRA versions, which it writes into the folder `versions` there with samples beside them; `score.txt` holds their
PSNR on validation pairs, which are neither trained on nor measured in the end. `--resume` goes on from a
transformer that is there, with a new optimizer; without `--base-seconds` only the versions are trained, from
`--from-version` on if it is given. Meant for a GPU; seeds are fixed, but training by the clock and the GPU's own
kernels give other weights each time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
from diffusers.models.autoencoders.autoencoder_kl_qwenimage import QwenImageCausalConv3d
from torch import nn

from realchar.engine import still_vae
from realchar.versions import trailing_number
from tools.demo_base import architecture, build, latents, lessons, pairs, prepared, texture, train_lora, train_vae
from tools.demo_base.train_transformer import Trainer, initialise, train
from tools.demo_base.validate import Validation

REPORT_EVERY = 300.0  # seconds


class Studio:
    """The options, the folder that is written and the device."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, options.out
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.began = time.monotonic()
        if not (self.out / "model_index.json").exists():
            build.build(self.out)

    def past(self) -> float:
        return time.monotonic() - self.began

    def say(self, text: str) -> None:
        print(f"{self.past():.0f} s: {text}", flush=True)

    def vae(self) -> None:
        """Train the VAE, and write it with its latents' statistics and the preview matrix."""
        pixels = pairs.read(prepared.training_files(self.options)).to(self.device)
        self.say(f"{len(pixels)} pairs")
        vae = AutoencoderKLQwenImage(**architecture.VAE).to(self.device)
        for module in vae.modules():  # taps that a still picture never reaches: zero packs well and hides nothing
            if isinstance(module, QwenImageCausalConv3d):
                nn.init.zeros_(module.weight.data[:, :, :-1])
        with still_vae.planar():
            train_vae.train(pixels, vae, self.options.seconds, lambda model: store(model, self.out / "vae"))
            stored = prepared.load_vae(self.out, self.device)
            known = latents.statistics(pixels, stored)
            stored.register_to_config(latents_mean=known.mean.tolist(), latents_std=known.std.tolist())
            store(stored, self.out / "vae")
            build.write_index(self.out, preview=known.preview.tolist())
            tests = pairs.read(prepared.test_files(self.options)).to(self.device)
            drawings, photos = train_vae.reconstruction_psnr(tests, stored)
        self.say(f"held-out reconstruction: drawings {drawings:.2f} dB, photos {photos:.2f} dB")

    def texture(self) -> None:
        """Teach the decoder's last block the strength of texture; the latents stay as they are."""
        files = prepared.training_files(self.options)
        vae = prepared.load_vae(self.out, self.device)
        tests = pairs.read(prepared.test_files(self.options)[:: texture.TEST_STRIDE]).to(self.device)
        some = pairs.read(files[:: max(1, len(files) // texture.PAIRS)][: texture.PAIRS]).to(self.device)
        self.say(f"before: {texture.figures(tests, vae)}")
        texture.train(some, vae, self.options.seconds)
        store(vae, self.out / "vae")
        self.say(f"after: {texture.figures(tests, vae)}")

    def transformer(self) -> None:
        """Train the base and the LoRA versions in one process: what is compiled and encoded serves both."""
        net = QwenImageTransformer2DModel(**architecture.TRANSFORMER)
        torch.manual_seed(build.SEED)
        initialise(net)
        if self.options.resume or not self.options.base_seconds:
            net = QwenImageTransformer2DModel.from_pretrained(self.out / "transformer", torch_dtype=torch.float32)
        added = train_lora.attach(net, max(version.rank for version in self.options.versions))
        trainer, validation = self.prepare(net.to(self.device))
        if self.options.base_seconds:
            self.base(trainer, validation, added)
        self.versions(trainer, validation, added)

    def prepare(self, net: QwenImageTransformer2DModel) -> tuple[Trainer, Validation]:
        """Encode the pairs in a second process while this one compiles."""
        with tempfile.TemporaryDirectory() as scratch:
            cache = Path(scratch, "prepared.pt")
            arguments = [*sys.argv[1:], "--prepared", str(cache)]
            process = subprocess.Popen([sys.executable, "-m", "tools.demo_base.prepared", *arguments])
            trainer = Trainer(net, *prepared.stand_in(self.device), compiled=self.options.compile)
            if self.options.compile:
                trainer.warm_up(lessons.ADAPTER)
                self.say("compiled")
            if process.wait():
                raise SystemExit("The pairs could not be prepared; the message is above.")
            trainer.cache, trainer.embeds, watched = prepared.load(cache, self.device)
        self.say(f"latents {tuple(trainer.cache.latents.shape)}")
        return trainer, Validation(prepared.load_vae(self.out, self.device), watched)

    def base(self, trainer: Trainer, validation: Validation, added: dict[str, train_lora.LoraLinear]) -> None:
        """Train the base: keep a picture, leave a photo, take a drawing half-way to a photo. The factors stay silent."""
        factors = {id(parameter) for parameter in train_lora.factors_of(added)}
        own = [parameter for parameter in trainer.net.parameters() if id(parameter) not in factors]
        trainer.start(lessons.BASE, own)
        reports = Every(REPORT_EVERY)

        def mark(_step: int, past: float) -> None:
            if reports.due(past):
                self.save_base(trainer, added)
                validation.report(trainer)

        train(trainer, self.options.base_seconds, mark)
        self.save_base(trainer, added)
        build.write_index(self.out, trained=True)
        validation.report(trainer, self.out / "base.png")
        with torch.no_grad():  # the versions are trained on what ships
            for parameter, average in zip(own, trainer.average, strict=True):
                parameter.copy_(average.bfloat16())

    def save_base(self, trainer: Trainer, added: dict[str, train_lora.LoraLinear]) -> None:
        with trainer.averaged() as net:
            plain = QwenImageTransformer2DModel(**architecture.TRANSFORMER)
            plain.load_state_dict(train_lora.plain_state(net, added))
        store(plain, self.out / "transformer")

    def versions(self, trainer: Trainer, validation: Validation, added: dict[str, train_lora.LoraLinear]) -> None:
        """Train the LoRA versions, each on from the one before; the learning rate falls towards each anew."""
        folder, done = self.out / "versions", 0
        if self.options.from_version:
            train_lora.restore(added, self.options.from_version)
            done = trailing_number(self.options.from_version.stem) or 0
        lesson = lessons.GOING_ON if self.options.from_version else lessons.ADAPTER
        trainer.start(lesson, train_lora.factors_of(added))
        reports = Every(REPORT_EVERY)

        def write(step: int) -> None:
            with trainer.averaged():
                path = train_lora.save(added, step, folder)
            self.say(f"wrote {path.name}")
            score = validation.report(trainer, path.with_suffix(".png"))
            with (folder / "score.txt").open("a", encoding="utf-8") as scores:
                scores.write(f"{path.name} {score:.3f}\n")

        def mark(step: int, _past: float) -> None:
            if reports.due(self.past()):
                with trainer.averaged():  # a training that is stopped can go on from it
                    train_lora.save(added, step, self.out / "unfinished")
                validation.report(trainer)

        for version in (version for version in self.options.versions if version.steps > done):
            if (left := self.options.seconds - self.past()) <= 0:
                break
            for lora in added.values():
                lora.use(version.rank)
            done = train(trainer, left, mark, version.steps, done)
            write(done)


def store(model: Any, folder: Path) -> None:
    """Write a component in bfloat16, with a config that does not say where it lay before."""
    deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    config = folder / "config.json"
    known = json.loads(config.read_text(encoding="utf-8"))
    known.pop("_name_or_path", None)
    config.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")


class Every:
    """True once in each interval of so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.last = seconds, 0.0

    def due(self, past: float) -> bool:
        if past - self.last < self.seconds:
            return False
        self.last = past
        return True


def main() -> None:
    parser = prepared.options_parser(__doc__)
    parser.add_argument("part", choices=("vae", "texture", "transformer"))
    options = parser.parse_args()
    train_lora.check_order(options.versions)
    if options.out.is_file():
        raise SystemExit(f"{str(options.out)!r} is a file; give a folder for --out.")
    if options.from_version and not options.from_version.is_file():
        raise SystemExit(f"{str(options.from_version)!r} is no file; give a LoRA version for --from-version.")
    torch.manual_seed(build.SEED)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    getattr(Studio(options), options.part)()
    print("done", flush=True)


if __name__ == "__main__":
    main()
