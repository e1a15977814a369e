"""Checkpoints that runs can start from."""

import click
from tqdm import tqdm

from fedlib.cli.options import Command, json_option, print_json, spec_options, values_of
from fedlib.core.errors import FedlibError
from fedlib.core.spec import RunSpec
from fedlib.models.starts import STARTS
from fedlib.runs import pretrained

CENTRAL = "dataset model subset skip transform batch_size optimizer lr lr_decay seed start".split()


@click.command(cls=Command)
@click.argument("name", required=False)
@spec_options(only=CENTRAL)
@click.option("--epochs", type=click.IntRange(min=1), default=10, show_default=True, help="Passes over the images.")
@json_option
def pretrain(name: str | None, epochs: int, as_json: bool, **options: str | None) -> None:
    """Train a model on a whole data set and keep it as a checkpoint that runs can start from.

    Without NAME, lists the checkpoints. With a NAME that exists and no option, trains it again by its recipe and fails
    if other weights come out. It can be stopped at any time and goes on from its last epoch.

    \b
    fedlib pretrain                      what there is
    fedlib pretrain resnet20_cifar10     make it again and compare
    fedlib pretrain my_mlp --dataset mnist --model 'mlp(hidden=64)' --epochs 5 --lr 0.05
    fedlib simulate --start my_mlp --dataset mnist --model 'mlp(hidden=64)' --partition iid

    A checkpoint is papers/weights/NAME.safetensors with its recipe and sha256 in NAME.json. The sha256 is part of
    the id of runs that start from it. Where a run has other classes, write --start 'NAME(classifier=fresh)'.
    """
    STARTS.read()
    cards = {start: cls.card for start, cls in STARTS.entries.items()}
    if name is None:
        return print_json(cards) if as_json else print_cards(cards)
    given = values_of({field: text for field, text in options.items() if text is not None})
    if name in cards and (given or "recipe" not in cards[name]):
        raise FedlibError(f"There is a start {name!r} already, made otherwise: choose another name.")
    if name not in cards and not {"dataset", "model"} <= set(given):
        known = ", ".join(cards) or "none"
        raise FedlibError(f"There is no start {name!r} (there are: {known}); to train it, give --dataset and --model.")
    if not name.isidentifier():
        raise FedlibError(f"A start is named by letters, digits and '_', such as resnet20_cifar10; got {name!r}.")
    central = dict(partition="iid", clients=1, keep_optimizer=True, rounds=epochs, eval_every=epochs)
    spec = RunSpec.from_json(cards[name]["recipe"] if name in cards else given | central)
    with tqdm(total=spec.rounds, unit="epoch", desc=name, disable=None) as bar:
        card = pretrained.pretrain(name, spec, lambda done: bar.update(done - bar.n))
    if as_json:
        print_json(card)
    else:
        print_cards({name: card})
    if card["sha256"] != cards.get(name, card)["sha256"]:
        before = cards[name]
        raise FedlibError(
            f"Other weights came out than those of {name}: accuracy {card['accuracy']} (then {before['accuracy']}), "
            f"on {card['environment']} (then {before['environment']}). The kept ones were left as they are."
        )


def print_cards(cards: dict[str, dict]) -> None:
    for name, card in cards.items():
        click.echo(f"{name}  sha256 {card['sha256'][:12]}\n    {card['about']}")
