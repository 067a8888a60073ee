class Metric:
    @staticmethod
    def could_log(value):
        return isinstance(value, (int, float, str))
