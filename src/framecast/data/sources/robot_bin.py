"""Robot bin: endless action-conditioned robot video, SIMULATED with MuJoCo. It looks like BAIR and is not BAIR.

A Sawyer arm (Meta-World's model) moves at random over a bin of 5 to 8 objects, pushes them and now and then closes its
gripper; the camera looks down from the front. An episode is 30 frames. Its action is how far the hand is to move by the
next frame, in metres (dx, dy, dz), and the gripper (1 to close, −1 to open); its state is where the hand is.

Eight episodes share a bin: floor, walls, light and objects. Of every ten bins one tests and one validates, until there
are 256 test clips and 256 for validation; the rest are for training. An object is an individual of a catalogue of ten
thousand, and a bin's looks a pair of textures; each individual and each pair belongs to one split alone, so a test clip
shows objects and a bin that no training clip has. Test and validation clips are the same whatever the seed.

Kept of each object in each frame: where it is, how many pixels it would cover if nothing else were there, and what
share of them is visible, so that occlusions can be found.

The renderer is OSMesa, which computes the same pixels on every machine, or EGL where there is no OSMesa.

T frames · H rows · W columns · N objects of a bin
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from framecast.data.assets import METAWORLD, fetch
from framecast.data.clip import Clip, Skipped
from framecast.data.resize import Size
from framecast.errors import Unavailable, UserError

if TYPE_CHECKING:
    from jaxtyping import Float32, Int32, UInt8

EPISODES = 8  # of one bin
HELD_OUT_BINS = 32  # of either held-out split: 256 clips, as many as BAIR tests on
MAX_SIDE = 1024
MAX_CLIPS = 8_000_000

NUM_OBJECTS = 10_000  # in the catalogue
BIN_TEXTURES = ("granite", "light_wood", "marble", "metal1", "navy_blue")
OBJECT_TEXTURES = (*BIN_TEXTURES, "plaster1", "wood1", "wood3", "brick1", "floor2", "tennis")

# Metres and seconds. The bin's floor is centred on CENTRE, its top at height 0.
CENTRE = (0.0, 0.6)
HALF_LENGTH, HALF_WIDTH, WALL = 0.30, 0.20, 0.012
HAND_LOW, HAND_HIGH = np.array([-0.25, 0.44, 0.05]), np.array([0.25, 0.76, 0.15])
TIME_STEP = 0.005
STEPS_PER_FRAME = 40
SETTLE_STEPS, APPROACH_STEPS = 400, 200
DRAWS = 20
"""How often a bin is shaken until all objects lie in it: a few start inside each other and fly out."""

# Groups of MuJoCo's geoms: what is shown, the one object that is shown alone, and what is never in the picture.
_SHOWN, _ALONE, _HIDDEN = 0, 4, 5
_OUT_OF_SIGHT = ("head", "base", "pedestal", "l0", "l1", "l2", "l3")
"""Meshes that the camera does not see, or only at its edge: half of all triangles."""


@dataclass(frozen=True)
class RobotBin:
    """Clips of the simulated robot. They are not BAIR."""

    clips: int = 10_000
    """In all; more clips begin with the same ones."""
    seed: int = 0
    """Of the training clips."""
    size: Size = (64, 64)
    num_frames: int = 30
    what: str = field(default="SIMULATED with MuJoCo: it looks like BAIR and is not BAIR", init=False)

    items_per_part: ClassVar[int] = 8

    def __post_init__(self) -> None:
        if not 1 <= self.clips <= MAX_CLIPS:
            raise UserError(f"{self.clips} clips are not possible: from 1 to {MAX_CLIPS} are")
        if self.num_frames < 2:
            raise UserError(f"clips of {self.num_frames} frames are not possible: from 2 are")
        if not all(8 <= side <= MAX_SIDE for side in self.size):
            raise UserError(f"frames of {self.size} are not possible: each side is from 8 to {MAX_SIDE} pixels")

    def items(self) -> Sequence[str]:
        """Bins, of which the last may have fewer episodes."""
        return [f"{number:06}" for number in range(-(-self.clips // EPISODES))]

    def read(self, items: Sequence[str]) -> Iterator[Clip | Skipped]:
        """The wheel with the arm comes from the cache, or is brought there."""
        try:
            wheel = fetch(METAWORLD)
        except UserError as error:  # no bin can be made, and none is to blame
            raise Unavailable(str(error)) from error
        for item in items:
            with Bin(int(item), self.seed, self.size, wheel) as scene:
                for number in range(min(EPISODES, self.clips - EPISODES * int(item))):
                    yield scene.episode(number, self.num_frames, f"{item}-{number}")


def split_of(number: int) -> str:
    """The split of the bin of this number."""
    if number < 10 * HELD_OUT_BINS and number % 10 in (1, 2):
        return ("test", "val")[number % 10 - 1]
    return "train"


def members(split: str, count: int) -> np.ndarray:
    """Which of so many individuals belong to a split: nobody to two."""
    place = np.arange(count) % 10
    return np.flatnonzero({"test": place == 1, "val": place == 2, "train": (place != 1) & (place != 2)}[split])


class Bin:
    """One bin with its objects and the arm over it, ready for episodes; a context, since the renderer must be freed."""

    def __init__(self, number: int, seed: int, size: Size, wheel: Path):
        self.split = split_of(number)
        self.key = (seed if self.split == "train" else 0, number)
        chance = np.random.default_rng(self.key)
        self.objects = chance.choice(members(self.split, NUM_OBJECTS), chance.integers(5, 9), replace=False)
        looks = list(itertools.permutations(BIN_TEXTURES, 2))
        self.floor, self.walls = looks[chance.choice(members(self.split, len(looks)))]
        bodies = [
            _body(chance, *each) for each in zip(chance.permutation(12).tolist(), self.objects.tolist(), strict=False)
        ]
        light = chance.uniform(0.4, 0.7)

        mujoco = _mujoco()
        self.mujoco = mujoco
        self.context = _gl_context(2 * size[1], 2 * size[0])
        xml = _world(bodies, self.floor, self.walls, light, size)
        self.model = mujoco.MjModel.from_xml_string(xml, _files(wheel))
        self.data = mujoco.MjData(self.model)
        self.model.eq_data[0] = [0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 5]  # the weld holds the hand where the target is
        self.first_body = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_BODY, "object0")
        self.owner = self.model.geom_bodyid - self.first_body  # the object that a geom is of, where there is one
        for geom in range(self.model.ngeom):
            mesh = self.model.geom_dataid[geom]
            out_of_sight = mesh >= 0 and self.model.mesh(mesh).name in _OUT_OF_SIGHT
            self.model.geom_group[geom] = _HIDDEN if out_of_sight else _SHOWN
        self.camera = Camera(mujoco, self.model, size)

    def __enter__(self) -> Bin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.camera.free()
        self.context.free()

    def episode(self, number: int, num_frames: int, name: str) -> Clip | Skipped:
        """The arm's random walk over the objects as they fell."""
        chance = np.random.default_rng((*self.key, number))
        if not self._fill(chance):
            return Skipped(name, f"an object lay outside the bin after each of {DRAWS} fillings")
        target = np.array([chance.uniform(-0.22, 0.22), chance.uniform(0.46, 0.74), 0.13])
        self._approach(target)
        frames, actions, states, facts = [], [], [], []
        speed = chance.normal(0, 0.03, 2)
        for _ in range(num_frames):
            frames.append(self.camera.picture(self.data))
            facts.append((self._positions(), *self.camera.visibility(self.data, self.owner, len(self.objects))))
            states.append(self.data.body("hand").xpos.copy())
            speed = 0.7 * speed + chance.normal(0, 0.028, 2)
            lift = chance.choice([-0.04, 0, 0.04], p=[0.3, 0.5, 0.2])
            grip = 1.0 if chance.random() < 0.15 else -1.0
            step = np.clip(target + np.append(speed, lift), HAND_LOW, HAND_HIGH) - target
            speed = step[:2]
            actions.append([*step, grip])
            self._move(target, step, grip)
            target = target + step
        if any(warning.number for warning in self.data.warning):
            return Skipped(name, "the simulation became unstable")
        positions, pixels, visible = (np.stack(each) for each in zip(*facts, strict=True))
        return Clip(
            np.stack(frames),
            name,
            self.split,
            label=f"simulated, not BAIR: floor {self.floor}, walls {self.walls}, objects {self.objects.tolist()}",
            actions=np.array(actions, np.float32),
            states=np.array(states, np.float32),
            extras={"object_positions": positions, "object_pixels": pixels, "object_visible": visible},
        )

    def _fill(self, chance: np.random.Generator) -> bool:
        """Drop the objects, turned at random, while the hand waits above; whether all came to lie in the bin."""
        for _ in range(DRAWS):
            self.mujoco.mj_resetData(self.model, self.data)
            for place in self.data.qpos[: 7 * len(self.objects)].reshape(-1, 7):  # free bodies come first
                place[:2] += chance.uniform(-0.05, 0.05, 2)
                place[3:] = chance.normal(size=4)
            self.data.mocap_pos[0], self.data.mocap_quat[0] = (*CENTRE, 0.25), (1, 0, 1, 0)
            self.data.ctrl[:] = -1, 1
            self.mujoco.mj_step(self.model, self.data, SETTLE_STEPS)
            away = np.abs(self._positions()[:, :2] - CENTRE)
            if (away < (HALF_LENGTH, HALF_WIDTH)).all():
                return True
        return False

    def _approach(self, target: np.ndarray) -> None:
        for _ in range(APPROACH_STEPS):
            self.data.mocap_pos[0] += (target - self.data.mocap_pos[0]) * 0.03
            self.mujoco.mj_step(self.model, self.data)

    def _move(self, start: np.ndarray, step: np.ndarray, grip: float) -> None:
        self.data.ctrl[:] = grip, -grip
        for done in range(1, STEPS_PER_FRAME + 1):
            self.data.mocap_pos[0] = start + step * (done / STEPS_PER_FRAME)
            self.mujoco.mj_step(self.model, self.data)

    def _positions(self) -> Float32[np.ndarray, "N 3"]:
        return self.data.xpos[self.first_body : self.first_body + len(self.objects)].astype(np.float32)


class Camera:
    """Pictures of a simulation at twice the size, then averaged; and who covers which pixel."""

    def __init__(self, mujoco: Any, model: Any, size: Size):
        self.mujoco, self.model, self.size = mujoco, model, size
        self.renderer = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self.renderer)
        self.scene = mujoco.MjvScene(model, maxgeom=1000)
        self.view = mujoco.MjvCamera()
        self.view.type, self.view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, model.camera("front").id
        self.everything, self.one_object = mujoco.MjvOption(), mujoco.MjvOption()
        self.everything.geomgroup[:] = [group != _HIDDEN for group in range(6)]
        self.one_object.geomgroup[:] = [group == _ALONE for group in range(6)]
        self.everything.sitegroup[:] = self.one_object.sitegroup[:] = 0

    def free(self) -> None:
        self.renderer.free()

    def picture(self, data: Any) -> UInt8[np.ndarray, "H W 3"]:
        height, width = self.size
        fine = self._render(data, self.everything, (2 * height, 2 * width), identities=False).astype(np.uint16)
        rows = fine[::2] + fine[1::2]
        return ((rows[:, ::2] + rows[:, 1::2] + 2) // 4)[::-1].astype(np.uint8)

    def visibility(
        self, data: Any, owner: np.ndarray, num_objects: int
    ) -> tuple[Int32[np.ndarray, "N"], Float32[np.ndarray, "N"]]:
        """Of each object, the pixels that it alone would cover, and the share of them that is seen; 0 of none."""
        seen = self._covered(data, self.everything, owner, num_objects)
        whole = np.zeros(num_objects, np.int32)
        for number in range(num_objects):
            mine = owner == number
            self.model.geom_group[mine] = _ALONE
            whole[number] = self._covered(data, self.one_object, owner, num_objects)[number]
            self.model.geom_group[mine] = _SHOWN
        return whole, (seen / np.maximum(whole, 1)).astype(np.float32)

    def _covered(self, data: Any, shown: Any, owner: np.ndarray, num_objects: int) -> Int32[np.ndarray, "N"]:
        """How many pixels each object covers."""
        picture = self._render(data, shown, self.size, identities=True)
        counts = np.bincount((picture @ np.array([1, 1 << 8, 1 << 16])).ravel(), minlength=self.scene.ngeom + 1)
        covered = np.zeros(num_objects, np.int32)
        for geom in self.scene.geoms[: self.scene.ngeom]:
            if geom.objtype == self.mujoco.mjtObj.mjOBJ_GEOM and 0 <= owner[geom.objid] < num_objects:
                covered[owner[geom.objid]] += counts[geom.segid + 1]
        return covered

    def _render(self, data: Any, shown: Any, size: Size, identities: bool) -> UInt8[np.ndarray, "h w 3"]:
        """Either what light shows, or the number of the geom in each pixel; OpenGL begins with the lowest row."""
        mujoco = self.mujoco
        mujoco.mjv_updateScene(self.model, data, shown, None, self.view, mujoco.mjtCatBit.mjCAT_ALL, self.scene)
        for flag in (mujoco.mjtRndFlag.mjRND_SEGMENT, mujoco.mjtRndFlag.mjRND_IDCOLOR):
            self.scene.flags[flag] = identities
        frame, buffer = mujoco.MjrRect(0, 0, size[1], size[0]), np.empty((*size, 3), np.uint8)
        mujoco.mjr_render(frame, self.scene, self.renderer)
        mujoco.mjr_readPixels(buffer, None, frame, self.renderer)
        return buffer


# The scene in MuJoCo's language.


def _world(bodies: list[str], floor: str, walls: str, light: float, size: Size) -> str:
    used = [name for name in OBJECT_TEXTURES if name in (floor, walls) or any(f"m_{name}" in body for body in bodies)]
    materials = "".join(
        f'<texture name="t_{name}" type="cube" file="{name}.png"/>'
        f'<material name="m_{name}" texture="t_{name}" texuniform="true" texrepeat="6 6" specular=".3"/>'
        for name in used
    )
    sides = "".join(
        f'<geom type="box" size="{length} {width} .05" pos="{x} {CENTRE[1] + y} .03" material="m_{walls}"/>'
        for x, y, length, width in (
            (0, HALF_WIDTH, HALF_LENGTH, WALL),
            (0, -HALF_WIDTH, HALF_LENGTH, WALL),
            (HALF_LENGTH, 0, WALL, HALF_WIDTH),
            (-HALF_LENGTH, 0, WALL, HALF_WIDTH),
        )
    )
    return f"""
    <mujoco>
      <include file="xyz_base_dependencies.xml"/>
      <compiler angle="radian" inertiagrouprange="0 5"/>
      <option timestep="{TIME_STEP}" iterations="20" integrator="implicitfast"/>
      <visual>
        <global offwidth="{2 * size[1]}" offheight="{2 * size[0]}"/>
        <quality shadowsize="512" offsamples="0" numslices="20" numstacks="10" numquads="1"/>
        <headlight ambient=".35 .35 .35" diffuse=".3 .3 .3"/>
      </visual>
      <asset>
        <texture type="skybox" builtin="gradient" rgb1=".45 .44 .42" rgb2=".3 .3 .3" width="32" height="32"/>
        {materials}
      </asset>
      <worldbody>
        <camera name="front" pos="0 1.06 .66" xyaxes="-1 0 0 0 -.80 .60" fovy="46"/>
        <light pos="0 {CENTRE[1]} 2" dir="0 0 -1" directional="true"
          diffuse="{light:.3f} {light:.3f} {0.9 * light:.3f}"/>
        <geom type="plane" size="3 3 .1" pos="0 0 -.9" rgba=".5 .48 .45 1"/>
        <geom type="box" size="{HALF_LENGTH} {HALF_WIDTH} .02" pos="0 {CENTRE[1]} -.02" material="m_{floor}"
          friction=".8 .01 .001"/>
        {sides}
        {"".join(f'<body name="object{n}" {body}' for n, body in enumerate(bodies))}
        <include file="xyz_base.xml"/>
      </worldbody>
      <actuator>
        <position joint="r_close" kp="400" ctrlrange="-1 1"/>
        <position joint="l_close" kp="400" ctrlrange="-1 1"/>
      </actuator>
      <equality><weld body1="mocap" body2="hand" solref="0.02 1"/></equality>
    </mujoco>"""


def _body(chance: np.random.Generator, cell: int, number: int) -> str:
    """An object over one of twelve places in the bin; all but its name."""
    x, y = np.array([-0.2 + 0.13 * (cell % 4), 0.48 + 0.12 * (cell // 4)]) + chance.uniform(-0.03, 0.03, 2)
    return f'pos="{x:.4f} {y:.4f} .06"><freejoint/>{_object(number)}</body>'


def _object(number: int) -> str:
    """An individual of the catalogue: one primitive, or two that make an L, a T, a mushroom."""
    chance = np.random.default_rng((NUM_OBJECTS, number))
    material = f'material="m_{chance.choice(OBJECT_TEXTURES)}"' if chance.random() < 0.4 else ""
    geoms = []
    for low, high in ((0.018, 0.04), (0.015, 0.035))[: chance.integers(1, 3)]:
        kind = chance.choice(["box", "cylinder", "capsule", "ellipsoid"])
        size, colour, place = chance.uniform(low, high, 3), chance.uniform(0.05, 1, 3), chance.uniform(-0.03, 0.03, 2)
        geoms.append(
            f'<geom type="{kind}" size="{_numbers(size)}" rgba="{_numbers(colour)} 1" pos="{_numbers(place)} 0" '
            f'euler="{chance.choice([0, math.pi / 2]):.4f} 0 0" {material} '
            'density="400" friction=".7 .02 .002" condim="4"/>'
        )
    return "".join(geoms)


def _numbers(values: np.ndarray) -> str:
    return " ".join(f"{value:.4f}" for value in values)


@lru_cache(maxsize=1)  # a dozen megabytes, the same for every bin
def _files(wheel: Path) -> dict[str, bytes]:
    """What MuJoCo finds by name: the arm, its meshes and the textures; nothing else of the wheel is looked at."""
    folder = "metaworld/assets"
    files = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(f"{folder}/objects/meshes/xyz_base/") and name.endswith(".stl"):
                files[name.rpartition("/")[2]] = archive.read(name)
        for texture in OBJECT_TEXTURES:
            files[f"{texture}.png"] = archive.read(f"{folder}/textures/{texture}.png")
        for name in ("xyz_base.xml", "xyz_base_dependencies.xml"):
            xml = archive.read(f"{folder}/objects/assets/{name}")
            files[name] = xml.replace(b"../objects/meshes/xyz_base/", b"")
    return files


# MuJoCo and OpenGL, where they are to be had.


def _mujoco() -> Any:
    try:
        import mujoco
    except ImportError as error:
        raise Unavailable("robot-bin needs MuJoCo: pip install 'framecast[sim]'") from error
    mujoco.set_mju_user_warning(lambda message: None)  # episodes look at the counters; a log file would lie about
    return mujoco


def _gl_context(width: int, height: int) -> Any:
    """An OpenGL context without a screen, made current."""
    os.environ.setdefault("LP_NUM_THREADS", "0")  # Mesa's rasteriser: cores are for processes
    platform = _gl_platform()
    try:
        context = importlib.import_module(f"mujoco.{platform}").GLContext(width, height)
        context.make_current()
    except Exception as error:  # each library fails in its own way
        raise Unavailable(
            f"robot-bin draws with OSMesa or EGL, and neither works ({platform}: {error}). "
            "Install OSMesa, on Debian and Ubuntu by: sudo apt-get install libosmesa6"
        ) from error
    return context


def _gl_platform() -> str:
    """What $MUJOCO_GL says, as for all that uses MuJoCo, else OSMesa where it is installed."""
    asked = os.environ.get("MUJOCO_GL", "").lower()
    if asked in ("osmesa", "egl"):
        return asked
    for name in ("libOSMesa.so", "libOSMesa.so.8", "libOSMesa.so.6"):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return "osmesa"
    return "egl"
