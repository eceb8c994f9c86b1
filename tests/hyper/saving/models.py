"""Hypernetworks to save, and how they are loaded and compared."""

import warnings

import torch

import weightloom as wl

X = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1))
CONDITION = torch.randn(3, 6, generator=torch.Generator().manual_seed(2))


def base(seed=0):
    torch.manual_seed(seed)
    return wl.mlp([4, 12, 12, 2])


def encoder(seed=1):
    torch.manual_seed(seed)
    return wl.mlp([6, 8], last_activation=True)


def trained(head="full", primary=None, **options):
    """A hypernetwork in which every learned tensor was moved away from its start."""
    hyper = wl.HyperNetwork(primary or base(), encoder(), head, **options)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in hyper.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return hyper.eval()


def loaded(folder, primary=None, new_encoder=None, **options):
    """Loaded without any warning, with an encoder that was initialised differently."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new_encoder = encoder(7) if new_encoder is None else new_encoder
        return wl.HyperNetwork.from_pretrained(folder, primary or base(), new_encoder, **options)


def same(a, b, x=X, condition=CONDITION):
    with torch.no_grad():
        want = a(x, condition)
        assert want.std() > 0.01
        assert torch.equal(b(x, condition), want)
