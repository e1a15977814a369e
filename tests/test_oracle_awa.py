"""FedAWA's released variant against the numbers of the authors' own code."""

import pytest
import torch
from oracle import close, files, load, state, tensor

import fedlib

DISTANCE = {"cos": "cosine", "euc": "euclidean"}
SINGLE = [(name, i) for name in files("fedawa_single_round*.json") for i in range(len(load(name)["runs"]))]


def written(optimizer: str, distance: str, steps: int) -> str:
    return f"awa(variant=released, optimizer={optimizer}, alignment={DISTANCE[distance]}, steps={steps})"


@pytest.mark.parametrize("name, i", SINGLE)
def test_oracle_fedawa_single_round(name, i):
    oracle = load(name)
    inputs, run = oracle["inputs"], oracle["runs"][i]
    result = fedlib.aggregate(
        written(run["optimizer"], run["reg_distance"], run["server_epochs"]),
        state(inputs["global"]),
        [state(c) for c in inputs["clients"]],
        sizes=run["T_in"]["data"],
    )
    torch.testing.assert_close(result.weights, torch.tensor(run["lambda_used_for_aggregation"]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(result.state["awa"]["T"][0].float(), tensor(run["T_out"]), rtol=1e-4, atol=1e-4)
    close(result.state_dict, run["aggregated"])


@pytest.mark.parametrize("name", files("fedawa_three_rounds_partial*.json"))
def test_oracle_fedawa_carries_weights_by_position(name):
    oracle = load(name)
    shares, args, memory = oracle["size_weights"], oracle["args"], {}
    form = written(args["server_optimizer"], args["reg_distance"], args["server_epochs"])
    for r in oracle["rounds"]:
        chosen = r["select_list"]
        clients = [state(r["clients"][str(k)]) for k in chosen]
        sizes = [shares[k] for k in chosen]
        result = fedlib.aggregate(
            form, state(r["global"]), clients, sizes, state=memory, ids=chosen, samples=sum(shares)
        )
        torch.testing.assert_close(result.weights, torch.tensor(r["lambda_used"]), rtol=1e-4, atol=1e-4)
        # The reference writes T back to the clients of the cohort. (Its "T_out" shows the last round's in every round.)
        after = torch.tensor([r["size_weights_global_after"][k] for k in chosen])
        memory = result.state
        torch.testing.assert_close(memory["awa"]["T"][0].float(), after, rtol=1e-4, atol=1e-4)
        close(result.state_dict, r["new_global"])
