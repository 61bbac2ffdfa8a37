"""Does what the JSON body of a request says: ``{"do": verb, ...}``."""

import builtins
import json
import os
import signal
import subprocess
import sys
import time


class PredictionException(Exception):
    def __init__(self, message, error_code):
        super().__init__(message)
        self.message, self.error_code = message, error_code


class Obey:
    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        answers = []
        for index, row in enumerate(data):
            order = row.get("body", row)
            if isinstance(order, bytearray):
                order = json.loads(order or b"{}")
            order = order if isinstance(order, dict) else {}
            verb = getattr(self, "do_" + str(order.get("do", "nothing")))
            answers.append(verb(order, index))
        if any(isinstance(answer, type(self)) for answer in answers):
            return answers[:-1]
        return answers

    def do_nothing(self, order, index):
        return {"pid": os.getpid(), "size": len(self.context.request_ids)}

    def do_sleep(self, order, index):
        time.sleep(order["seconds"])
        return {"pid": os.getpid(), "token": order.get("token")}

    def do_wait(self, order, index):
        """Until there is this file."""
        while not os.path.exists(order["file"]):
            time.sleep(0.005)
        return {"pid": os.getpid(), "token": order.get("token")}

    def do_raise(self, order, index):
        raise ValueError(order.get("text", "as it was told"))

    def do_predict_error(self, order, index):
        raise PredictionException(order["text"], order["code"])

    def do_memory(self, order, index):
        raise MemoryError

    def do_daemon(self, order, index):
        program = [sys.executable, "-c", "import time; time.sleep(60)"]
        return {"pid": subprocess.Popen(program, start_new_session=True).pid}

    def do_orphans(self, order, index):
        """Forks processes into sessions of their own, whose parents end, and which mind no signal."""
        reading, writing = os.pipe()
        for _ in range(order["count"]):
            parent = os.fork()
            if parent == 0:
                os.setsid()
                if os.fork() == 0:
                    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                        signal.signal(number, signal.SIG_IGN)
                    os.write(writing, b"%10d" % os.getpid())
                    time.sleep(60)
                os._exit(0)
            os.waitpid(parent, 0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pids:
            return {"pids": [int(pids.read(10)) for _ in range(order["count"])]}

    def do_exit(self, order, index):
        os._exit(order.get("code", 3))

    def do_leave(self, order, index):
        """Raises what is no error of a request."""
        raise getattr(builtins, order["name"])(4)

    def do_signal(self, order, index):
        os.kill(os.getpid(), getattr(signal, order["name"]))
        time.sleep(5)

    def do_short(self, order, index):
        return self

    def do_object(self, order, index):
        return object()

    def do_big(self, order, index):
        return b"x" * order["bytes"]

    def do_print(self, order, index):
        print("begin")
        for _ in range(order["megabytes"]):
            sys.stdout.write("p" * (1 << 20))
            sys.stderr.write("e" * 1000 + "\n")
        sys.stdout.flush()
        return "printed"
