"""Tells messages between nodes: each a box of ranks, and the link counts its bytes."""

from ..recording import Recording, table

RINGS = {
    "in order": "Ring 0, 1, 2, 3: half of the messages stay on their node.",
    "in turns": "Ring 0, 2, 1, 3: every message crosses the link.",
}


def crossings(events: Recording) -> Recording:
    """Return what each rank has sent so far, inside its node and over the link."""
    rows, found, sent = table(events), [], {}
    nodes = [event["node"] for event in rows[0]]
    for row in rows:
        if "to" not in row[0]:  # another ring begins
            sent = {rank: [0, 0] for rank in range(len(row))}
        for rank, event in enumerate(row):
            sends = []
            if "to" in event:
                sent[rank][nodes[rank] != nodes[event["to"]]] += event["bytes"]
                sends = [[event["to"], "sends", [[event["bytes"], rank]]]]
            inside, link = sent[rank]
            holds = {"inside": [[inside]], "link": [[link]]}
            found.append(event | {"holds": holds, "sends": sends})
        total = sum(link for _, link in sent.values())
        same = {"step": row[0]["step"], "phase": row[0]["phase"]}
        found.append(same | {"rank": -1, "holds": {"bytes": [[total]]}})
    boxes = {}
    for rank, node in enumerate(nodes):  # so that the ring goes round, clockwise
        ranks = boxes.setdefault(f"node {node}", [])
        ranks.insert(0 if node else len(ranks), rank)
    header = {"picture": "flow", "phases": RINGS, "pace": 1.7, "boxes": boxes}
    return Recording(found, **events.header | header | {"alone": "over the link"})
