"""`realchar doctor`: what this machine can do, what will be chosen, and what to do about each problem."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from realchar.doctor import diagnose
from realchar.settings import Settings

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

SIGNS = {"ok": "ok  ", "warn": "warn", "bad": "BAD "}


def register(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("doctor", help="check this machine and say what will be used, and why")
    parser.add_argument("--data", type=Path, help="folder of jobs, uploads and results")
    parser.add_argument("--base", metavar="PATH", help="a diffusers folder; default: the embedded demo base")
    parser.add_argument("--weights", type=Path, help="folder of LoRA versions")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; return 0 where nothing is bad, else 1."""
    findings = diagnose(Settings.load(data=args.data, base=args.base, weights=args.weights))
    if args.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], ensure_ascii=False, indent=1))
    else:
        for finding in findings:
            print(f"{SIGNS[finding.state]}  {finding.key:<9}  {finding.text}")
            if finding.remedy:
                print(f"{'':17}→ {finding.remedy}")
    return int(any(finding.state == "bad" for finding in findings))
