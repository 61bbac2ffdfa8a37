"""Does to its response what the body lists: pairs of a method of the context and its arguments."""


class Responds:
    def initialize(self, context):
        self.context = context

    def handle(self, data, context):
        answers = []
        for index, row in enumerate(data):
            for name, *arguments in row["body"]["do"]:
                if name == "set_response_status":
                    code, *phrase = arguments
                    context.set_response_status(code, *phrase, idx=index)
                elif name == "set_all_response_status":
                    context.set_all_response_status(*arguments)
                else:
                    getattr(context, name)(index, *arguments)
            answers.append(row["body"].get("answer", "done"))
        return answers
