// Mark: what makes libtorch's operators come to this room when they touch a certain tensor.
//
// A marked tensor has a spare dispatch key in its key set, above autograd and autocast, and carries an object
// that says what it is marked for. Operators that have no kernel for the key fall through it at no cost. Both
// pass on to detached tensors, views, copies by to() and clones, and are lost where set_data puts an unmarked
// tensor in.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

namespace hasten::parallel {

/// libtorch's own tests and nothing else of it use this key.
inline constexpr c10::DispatchKey kMarkKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// What a marked tensor carries; subclasses say what for.
class Mark : public c10::BackendMeta {};

/// The tensor's identity and value stay as they are.
void set_mark(const at::Tensor& tensor, c10::intrusive_ptr<Mark> mark);

/// Null for a tensor that is undefined or not marked.
c10::intrusive_ptr<Mark> mark_of(const at::Tensor& tensor);

}  // namespace hasten::parallel
