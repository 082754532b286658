"""A whole DRA driver: it hands out greetings. docs/tutorial/write-a-driver.md walks through it."""

import msgspec

from drakkar.driver import ContainerEdits, Driver, Health, PrepareError, device, main


class Greeting(msgspec.Struct, forbid_unknown_fields=True):
    """Parameters that a claim or a class may carry."""

    language: str = "en"


WORDS = {"en": "hello", "no": "hei", "is": "halló"}


class HelloDriver(Driver):
    name = "hello.example.com"
    version = "1.0.0"
    configs = {("hello.example.com/v1", "Greeting"): Greeting}

    def discover(self):
        return [device(f"greeter-{i}", {"voice": "alto" if i % 2 else "bass"}, {"volume": 10 * i}) for i in range(4)]

    def prepare(self, claim, devices):
        edits = []
        for found in devices:
            config = found.configs[-1] if found.configs else Greeting()
            if config.language not in WORDS:
                raise PrepareError(f"language {config.language!r} is not known, choose one of {', '.join(WORDS)}")
            edits.append(ContainerEdits(env=[f"GREETING={WORDS[config.language]} from {found.name}"]))
        return edits

    def health(self):
        return {"greeter-0": Health("Degraded", "a little hoarse")}


if __name__ == "__main__":
    raise SystemExit(main(HelloDriver()))
