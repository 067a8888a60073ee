"""join: a loop in which ranks have different numbers of batches, as torch.distributed.algorithms.Join and Accelerate's
join_uneven_inputs.

The engine has to know of a backward before the first gradient of it is there. So while such a loop is open a distributed
module's outputs are cut off from its graph: their backward runs the graph before them through the engine.
"""
import contextlib

_open = {}  # loops that are open, by trainer


class _Cut:
    """The graph before a module's outputs, whose backward is the engine's."""

    weight = None  # of hasten.backward, for the backward that it runs
    retains = False
    _runs = False

    def __init__(self, trainer, outputs):
        self.trainer, self.outputs = trainer, outputs

    def run(self, gradients):
        from hasten.errors import UsageError

        if _Cut._runs:
            raise UsageError("[python] join: a distributed module's output goes into another one. In a loop of uneven length put them "
                             "into one module.")
        given = [(output, gradient) for output, gradient in zip(self.outputs, gradients) if gradient is not None]
        _Cut._runs = True
        try:
            _open[self.trainer].count += 1
            if len(given) == 1:
                output, gradient = given[0]
                self.trainer.backward(output, _Cut.weight, gradient, _Cut.retains, False)
            else:
                self.trainer.backward(_sum_of_products(given), _Cut.weight, None, _Cut.retains, False)
        finally:
            _Cut._runs = False


def _sum_of_products(given):
    import torch

    with torch.enable_grad():  # its gradient by each output is the one that came
        return sum((output * gradient).sum() for output, gradient in given)


def _cut_off(cut):
    """The outputs of a cut as tensors whose backward runs it."""
    import torch

    class Joins(torch.autograd.Function):
        @staticmethod
        def forward(context, *tensors):
            context.set_materialize_grads(False)
            return tuple(tensor.view_as(tensor) for tensor in tensors)

        @staticmethod
        def backward(context, *gradients):
            cut.run(gradients)
            return (None,) * len(gradients)

    return Joins.apply(*[output.detach().requires_grad_() for output in cut.outputs])


class _Loop:
    def __init__(self, trainer, hook):
        from hasten._load import engine

        self.trainer, self.count = trainer, 0
        self.engine = engine().UnevenLoop(trainer, hook.engine)

    def after_forward(self, module, _inputs, outputs):
        """The hook behind the forward of the trainer's modules."""
        import torch
        from torch.utils import _pytree

        from hasten.errors import UsageError

        if not torch.is_grad_enabled():
            return outputs
        leaves, form = _pytree.tree_flatten(outputs)
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if not places:
            if any(p.requires_grad for p in module.parameters()) and not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
                raise UsageError(f"[python] join: the output of {type(module).__name__} is a {type(outputs).__name__} without a tensor that "
                                 "has a gradient. Return tensors, or lists, tuples or dicts of them.")
            return outputs
        cut = _Cut(self.trainer, [leaves[i] for i in places])
        for i, tensor in zip(places, _cut_off(cut)):
            leaves[i] = tensor
        return _pytree.tree_unflatten(leaves, form)


def backward(trainer, loss, weight, gradient, retain_graph, create_graph):
    """hasten.backward where the trainer has an open loop; False where it has none."""
    from hasten.errors import UsageError

    if trainer not in _open or not loss.requires_grad:
        return False
    if create_graph:
        raise UsageError("[python] backward(create_graph=True) inside a loop of uneven length. Use even_batches there.")
    _Cut.weight, _Cut.retains = weight, bool(retain_graph)
    try:
        loss.backward(gradient, retain_graph=retain_graph)
    finally:
        _Cut.weight, _Cut.retains = None, False
    return True


def _takes_over(objects, root, mine):
    """Gives all ranks the root's learning rates, and states of what the engine does not step."""
    import torch.distributed as dist

    states = []
    for each in objects:
        twin = getattr(each, "_hasten_twin", None)
        states.append(each.state_dict() if twin is None else twin.options(each))
    box = [states if mine == root else None]
    dist.broadcast_object_list(box, root)
    if mine != root:
        for each, state in zip(objects, box[0]):
            twin = getattr(each, "_hasten_twin", None)
            each.load_state_dict(state) if twin is None else twin.load_options(each, state)


def _finish(loop, objects):
    import torch.distributed as dist

    loop.engine.close()
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, loop.count)
    if len(set(counts)) > 1:
        _takes_over(objects, counts.index(max(counts)), dist.get_rank())


@contextlib.contextmanager
def join(module, *objects):
    """A loop in which some ranks have more batches than others. Collective: each rank opens it once for a loop.

    A rank that has run out takes part in the others' backwards without data, and waits at the end of the `with`. Gradients are
    the mean over the ranks that had data: a backward without a weight has weight 1. At the end all ranks have the parameters,
    buffers and optimizers of a rank that went on to the end, and the states of `objects`: schedulers, and optimizers that
    hasten.optimizer has left to Python. Other collectives inside are the program's matter. Raises UsageError for modules behind
    one another, for different calls of ranks with data, and for a loop inside another.
    """
    from hasten import distributing
    from hasten.errors import CommError, UsageError

    hook = distributing._hook_of(module)
    trainer = hook.trainer
    if trainer in _open:
        raise UsageError("[python] join: such a loop is open already. Use one for each loop over a loader.")
    loop = _open[trainer] = _Loop(trainer, hook)
    handles = [each.register_forward_hook(loop.after_forward) for each in distributing.modules_of(trainer)]
    try:
        yield
    except BaseException as error:
        del _open[trainer]
        loop.engine.leave(f"{type(error).__name__}: {error}", isinstance(error, CommError))
        raise
    else:
        del _open[trainer]
        _finish(loop, objects)
    finally:
        for handle in handles:
            handle.remove()
