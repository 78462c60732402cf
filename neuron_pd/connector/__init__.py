"""The vLLM seam: the only package that imports vLLM.

`--kv-transfer-config` names the class, `"kv_connector": "NixlConnector"`, and where it lies,
`"kv_connector_module_path": "neuron_pd.connector.connector"`.
`--middleware neuron_pd.connector.control.ControlPath` adds the control path.
"""
