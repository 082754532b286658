"""What stands between a write that is allowed and a write that happens.

    pods         what the server adds to pods: account, priority, patience with sick nodes
    limits       LimitRange: defaults and bounds
    quota        ResourceQuota: live usage, and what is on its way to the store
    match        which requests a webhook or a policy is for
    conditions   match conditions, and what expressions of admission see
    webhooks     mutating and validating webhooks; `callers` speaks to them
    policies     ValidatingAdmissionPolicy
    forms        how objects look to webhooks and policies
    chain        the order of all that, and what the registry calls

Only webhooks wait for anything; whoever calls them decides anew when the object has changed meanwhile.
"""

from drakkar.apiserver.admission.attributes import Attributes
from drakkar.apiserver.admission.chain import Admission
from drakkar.apiserver.admission.forms import BodyForms, ObjectForms, ScaleForms
from drakkar.apiserver.admission.quota import Charge

__all__ = ["Admission", "Attributes", "BodyForms", "Charge", "ObjectForms", "ScaleForms"]
