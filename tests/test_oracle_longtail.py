"""CReFF's matching loss, FPL's contrastive loss and FINCH, against numbers from released code."""

import oracle
import pytest
import torch

from fedlib.algorithms.creff import mismatch
from fedlib.algorithms.fpl import finch, infonce


@pytest.mark.parametrize("name", oracle.files("creff_match_loss*.json"))
def test_oracle_creff_match_loss(name):
    data = oracle.load(name)
    real, fake = (
        torch.cat([t.reshape(len(t), -1) for t in map(oracle.tensor, data[key])], 1) for key in ("g_real", "g_syn")
    )
    width = oracle.tensor(data["g_real"][0]).shape[1]
    assert float(mismatch(real, fake, width, "released")) == pytest.approx(data["ours"], abs=1e-4)


@pytest.mark.parametrize("name", oracle.files("fpl_infonce*.json"))
def test_oracle_fpl_infonce(name):
    data = oracle.load(name)
    z, own, others = (oracle.tensor(data[key]) for key in ("f_now", "f_pos", "f_neg"))
    prototypes, labels = torch.cat([own, others]), torch.tensor([0] * len(own) + [1] * len(others))
    expected = {float(key.removeprefix("loss_tau")): value for key, value in data.items() if key.startswith("loss_tau")}
    assert expected
    for tau, value in expected.items():
        mine = infonce(z, torch.zeros(len(z), dtype=torch.long), prototypes, labels, tau)
        assert float(mine) == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("name", oracle.files("fpl_finch*.json"))
def test_oracle_fpl_finch(name):
    data = oracle.load(name)
    theirs = oracle.tensor(data["partitions(columns, last is used)"])[:, -1]
    mine = torch.from_numpy(finch(oracle.tensor(data["points"]).numpy()))
    assert torch.equal(mine[:, None] == mine, theirs[:, None] == theirs), "the same points share a cluster"
