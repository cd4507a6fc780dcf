"""Teach a small transformer to add: one process, on the GPU if there is one.

    python scripts/train_alone.py

It trains on 8,400 of the 10,000 sums from 0 + 0 to 99 + 99. After each epoch it answers
the other 1,600, and says what 39 + 49 is: neither this sum nor 49 + 39 is trained on.
"""

from argparse import ArgumentParser

import torch
from torch import nn
from torch.utils.data import DataLoader

BATCH, LR = 240, 8e-3


def make_sums():
    """Return all sums as digits, shuffled: 39 + 49 = 88 is 3 9 + 4 9 = 8 8 0."""
    n = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))
    a, b = n // 100, n % 100
    plus, equals = torch.full_like(n, 10), torch.full_like(n, 11)
    text = [a // 10, a % 10, plus, b // 10, b % 10, equals]
    # The answer begins with the units, as when you add on paper.
    text += [(a + b) // place % 10 for place in (1, 10, 100)]
    return torch.stack(text, dim=1)


class Adder(nn.Module):
    """A transformer that guesses each digit of an answer from what stands before it."""

    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(12, width)
        self.place = nn.Parameter(torch.zeros(8, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, text):
        x = self.embed(text[:, :8]) + self.place
        mask = nn.Transformer.generate_square_subsequent_mask(8, x.device)
        return self.head(self.body(x, mask, is_causal=True))[:, 5:]


def as_number(digits):
    """Return the numbers that digits stand for, from the units on."""
    return digits[:, 0] + 10 * digits[:, 1] + 100 * digits[:, 2]


@torch.no_grad()
def answer(model, text):
    """Return the model's answers: it guesses the units, then the tens, and so on."""
    text = text.clone()
    for place in range(3):
        text[:, 6 + place] = model(text)[:, place].argmax(1)
    return as_number(text[:, 6:])


def main():
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=32, help="of the network")
    parser.add_argument("--epochs", type=int, default=8)
    args = parser.parse_args()

    torch.set_num_threads(1)  # one core, so that times can be compared
    torch.set_default_dtype(torch.float64)  # prints the same on every processor
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    torch.manual_seed(0)
    sums = make_sums()
    training, new = sums[:8400], sums[8400:].to(device)
    asked = torch.tensor([[3, 9, 10, 4, 9, 11, 0, 0, 0]], device=device)

    loader = DataLoader(training, BATCH, shuffle=True)
    model = Adder(args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    steps = args.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, steps)

    for epoch in range(args.epochs):
        for step, text in enumerate(loader):
            text = text.to(device)
            guess = model(text).flatten(0, 1)
            loss = nn.functional.cross_entropy(guess, text[:, 6:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            if epoch == step == 0:
                print(f"first loss {loss:.6f}")

        off = (answer(model, new) - as_number(new[:, 6:])).abs()
        right, ten = (off == 0).sum().item(), (off == 10).sum().item()
        said = answer(model, asked).item()
        told = f"{right:4} of {len(new)} right, {ten:3} off by ten"
        print(f"epoch {epoch + 1}: 39+49={said:3}, {told}")

    print(f"ok: 1 process on {device.type}")


if __name__ == "__main__":
    main()
