"""The vLLM seam: the only package that imports vLLM. With another vLLM than it was tested on, its import says so.

`--kv-transfer-config` names the class, `"kv_connector": "NixlConnector"`, and where it lies,
`"kv_connector_module_path": "neuron_pd.connector.connector"`.
`--middleware neuron_pd.connector.control.ControlPath` adds the control path.
"""

from neuron_pd.connector.release import require_tested_vllm

require_tested_vllm()  # before anything is imported that other releases do not have
