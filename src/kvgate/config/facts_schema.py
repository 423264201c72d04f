"""What is known of a deployment and told by no endpoint."""

from pydantic import Field

from kvgate.config.values import Fact, Name, Section


class FactsConfig(Section):
    """What the endpoints do not tell and an operator knows. Kept with every run; `check` compares it word for word."""

    checkpoint: Fact | None = Field(None, description="checkpoint that is served, best with its revision")
    quantisation: Fact | None = Field(None, description="quantisation of weights and cache, for instance W8A8")
    device: Fact | None = Field(None, description="device and its generation, for instance Atlas A3")
    topology: Fact | None = Field(None, description="nodes and how they are joined, for instance 2 nodes, RoCE")
    parallelism: Fact | None = Field(None, description="TP, DP, EP, DCP and PD, for instance TP8 DP4 EP32")
    backend: Fact | None = Field(None, description="store and communication back end, for instance Mooncake over RDMA")
    versions: dict[Name, Fact] = Field(
        default_factory=dict,
        description="component to version or commit, for instance {vllm-ascend: v0.13.0-5-g1a2b3c}",
    )
    features: dict[Name, Fact] = Field(
        default_factory=dict, description="switch to value, for instance {speculation: mtp 1, dcp: 2}"
    )
