"""Runs on a quadratic, spread over devices or over processes, and every number that they give.

    python tests/spread.py OUT.npz DEVICES RUNS [PROCESSES PROCESS PORT]

DEVICES: how many the CPU pretends to be, in each process. RUNS: METHOD/WAY,... Ways: `plain`, without `devices`; a
number of devices; `every`, all there are; `fast`, those with aggregate="fast"; `resumed`, half a run on two of them
that is continued on four; `sweep`, `2x2`, the same over runs and workers, and `left behind`, with some that diverge;
`@9` after any, nine workers in place of eight. With PROCESSES this is one of them.
"""

import sys

import numpy as np

ROUNDS = 12


def methods():
    """Every mechanism of the reference set, and one of each other kind, by name: (uplink, downlink, more)."""
    import adacgd as ac

    top, rand = ac.TopK(3), ac.RandK(3)
    return {
        "gd": (ac.GD(), None, {}),
        "ef21": (ac.EF21(top), None, {}),
        "ef21_randk": (ac.EF21(ac.ContractiveRandK(3)), None, {}),
        "lag": (ac.LAG(4.0), None, {}),
        "clag": (ac.CLAG(top, 4.0), None, {}),
        "adacgd": (ac.AdaCGD([ac.TopK(k) for k in (1, 4, 9)], 2.0), None, {}),
        "v1": (ac.ThreePCv1(top), None, {}),
        "v2": (ac.ThreePCv2(rand, top), None, {}),
        "v3": (ac.ThreePCv3(ac.CLAG(ac.TopK(5), 1.0), top), None, {}),
        "v4": (ac.ThreePCv4(top, ac.TopK(2)), None, {}),
        "v5": (ac.ThreePCv5(top, 0.4), None, {}),
        "marina": (ac.MARINA(rand, 0.4), None, {}),
        "marina_perm": (ac.MARINA(ac.PermK(), 0.4), None, {}),
        "both ways": (ac.EF21(top), ac.EF21(ac.TopK(4)), {}),
        "primal": (ac.CLAG(top, 1.0), ac.EF21(ac.TopK(4)), {"form": "primal"}),
        "diana": (ac.DIANA(rand), None, {}),
        "heavy ball": (ac.EF21(ac.Sign()), None, {"momentum": 0.5}),
        "compressed start": (ac.EF21(top), None, {"init": "compressed"}),
    }


def numbers(trace):
    """Whatever a run says, by name."""
    named = ("loss", "grad_sq", "errors", "G", "H", "W", "S", "level", "scalars_up", "extra_bits_up", "scalars_down")
    found = {name: getattr(trace, name) for name in (*named, "rounds", "grad_sq_sum", "distance_sq", "x")}
    return {name: np.asarray(values) for name, values in found.items() if values is not None}


def perform(run):
    """The numbers of one METHOD/WAY."""
    import adacgd as ac
    import problems
    from adacgd import pool

    method, way = run.split("/")
    way, _, workers = way.partition("@")
    problem = problems.quadratic(workers=int(workers or 8), dim=16, noise_scale=0.8, strength=5e-2, seed=3)
    up, down, more = methods()[method]
    if way == "2x2":
        grid = ac.sweep(problem, up, down, stepsizes=[0.02, 0.05], rounds=ROUNDS, devices=(2, 2), **more)
        return numbers(grid[1])
    if way == "left behind":
        pool.FIRST, pool.WORTH = 4, 1
        steps = [0.02, 50.0, 0.05, 60.0, 70.0, 0.05, 80.0, 90.0]  # gathered from eight places into four
        return numbers(ac.sweep(problem, up, down, stepsizes=steps, rounds=ROUNDS, devices=(2, 2), **more)[2])
    if way == "sweep":
        return numbers(ac.sweep(problem, up, down, stepsizes=[0.02, 0.05], rounds=ROUNDS, **more)[1])
    go = lambda rounds, **how: ac.simulate(problem, up, down, stepsize=0.05, rounds=rounds, key=5, **more, **how)
    if way == "plain":
        return numbers(go(ROUNDS))
    if way == "resumed":
        return numbers(go(ROUNDS, start=go(ROUNDS // 2, devices=2), devices=4))
    if way == "fast":
        return numbers(go(ROUNDS, devices="all", aggregate="fast"))
    return numbers(go(ROUNDS, devices="all" if way == "every" else int(way)))


def main(out, devices, runs, processes="1", process="0", port="0"):
    """Do the runs; the first process writes."""
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_num_cpu_devices", int(devices))
    if int(processes) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", int(processes), int(process))
    found = {f"{run}/{name}": values for run in runs.split(",") for name, values in perform(run).items()}
    if int(process) == 0:
        np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
