"""Tells who tests which sample as numbers that ranks hold, for flow.py to draw.

Behind a sample stand the ranks that test it, so that one tested again shows.
"""

from ..recording import Recording

WAYS = {
    "mean of means": "Each rank gives its accuracy, and all accuracies count alike.",
    "padded": "Shares are made equal: some samples are tested again.",
    "drop_last": "Shares are made equal: some samples are not tested.",
    "exact": "Each rank gives two numbers: how many are right, and of how many.",
}


def tested(events: Recording) -> Recording:
    """Return what each rank tests and gives, and what all make of it.

    A recording has one event a rank for each way: the samples that it tests, which of
    them the model gets right, and the accuracy that all ranks then have. In the middle
    stands one process that tests all alone.
    """
    ranks, found, each = range(events.header["ranks"]), [], {}
    for event in events:
        each |= zip(event["tests"], event["right"])
    truth = [[f"{sum(each.values())} of {len(each)}"]]
    alone = {"right": truth, "accuracy": [[f"{sum(each.values()) / len(each):.1%}"]]}
    for event in events:
        step, right = event["step"], event["right"]
        who = {r["rank"]: r["tests"] for r in events if r["step"] == step}
        tests = [
            [f"{i} {'✗✓'[mark]}", *(r for r in ranks if i in who[r])]
            for i, mark in zip(event["tests"], right)
        ]
        gives = f"{sum(right)} of {len(right)}"
        if event["phase"] == "mean of means":
            gives = f"{sum(right) / len(right):.1%}" if right else "nan"
        holds = {"tests": tests, "gives": [[gives, event["rank"]]]}
        holds["result"] = [[event["accuracy"], *ranks]]
        found.append(event | {"holds": holds, "call": "all_reduce"})
        if event["rank"] == 0:
            found.append(event | {"rank": -1, "holds": alone})
    header = {"picture": "flow", "phases": WAYS, "pace": 3, "alone": "one process"}
    return Recording(found, **events.header | header)
