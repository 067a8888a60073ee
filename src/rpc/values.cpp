// Writer and Reader: what their templates do not do.
#include "hasten/rpc/values.h"

#include <torch/types.h>

#include <utility>

#include "hasten/core/error.h"

namespace hasten::rpc {
namespace {

enum class Layout : uint8_t { kStrided = 0, kSparse = 1, kCoalesced = 2 };

}  // namespace

void Writer::tensor(const at::Tensor& value) {
  if (!value.defined() || value.layout() == at::kStrided) {
    number(static_cast<uint8_t>(Layout::kStrided));
    packed_.tensors.push_back(value);
    return;
  }
  if (value.layout() != at::kSparse) {
    throw UsageError({"rpc"}, "a tensor of layout ", value.layout(),
                     " cannot travel. Pass a strided or a sparse COO tensor.");
  }
  number(static_cast<uint8_t>(value.is_coalesced() ? Layout::kCoalesced : Layout::kSparse));
  size(static_cast<size_t>(value.dim()));
  for (const int64_t one : value.sizes()) number(one);
  packed_.tensors.push_back(value._indices());
  packed_.tensors.push_back(value._values());
}

Reader::Reader(detail::Packed& packed, std::shared_ptr<detail::Core> core)
    : packed_(packed),
      core_(std::move(core)),
      next_(packed.bytes.data() + packed.begin),
      end_(packed.bytes.data() + packed.bytes.size()) {}

void Reader::fail(std::string_view what) const {
  throw DataError(Origin{"rpc"}, "message", "a message's values do not fit the function: it ", what, ".");
}

at::Tensor Reader::next_tensor() {
  if (tensor_ == packed_.tensors.size()) fail("has fewer tensors than are asked for");
  return packed_.tensors[tensor_++];
}

at::Tensor Reader::tensor() {
  const auto layout = static_cast<Layout>(number<uint8_t>());
  if (layout == Layout::kStrided) return next_tensor();
  if (layout != Layout::kSparse && layout != Layout::kCoalesced) fail("has a tensor of an unknown layout");
  std::vector<int64_t> sizes(size(sizeof(int64_t)));
  for (int64_t& one : sizes) one = number<int64_t>();
  const at::Tensor indices = next_tensor(), values = next_tensor();
  try {
    return torch::sparse_coo_tensor(indices, values, sizes)._coalesced_(layout == Layout::kCoalesced);
  } catch (const c10::Error& error) {
    fail(text("has a sparse tensor whose parts do not fit: ", error.what_without_backtrace()));
  }
}

std::shared_ptr<detail::Reference> Reader::reference() {
  if (reference_ == packed_.references.size()) fail("has fewer references than are asked for");
  return packed_.references[reference_++];
}

namespace detail {

void write_scalar(Writer& to, const c10::Scalar& value) {
  const char kind = value.isBoolean() ? 'b' : value.isIntegral(false) ? 'i' : value.isComplex() ? 'c' : 'f';
  to.number(kind);
  if (kind == 'b') to.number(static_cast<uint8_t>(value.toBool()));
  if (kind == 'i') to.number(value.toLong());
  if (kind == 'f') to.number(value.toDouble());
  if (kind == 'c') to.number(value.toComplexDouble());
}

c10::Scalar read_scalar(Reader& from) {
  switch (from.number<char>()) {
    case 'b':
      return from.number<uint8_t>() != 0;
    case 'i':
      return from.number<int64_t>();
    case 'f':
      return from.number<double>();
    case 'c':
      return from.number<c10::complex<double>>();
    default:
      from.fail("has a number of an unknown kind");
  }
}

}  // namespace detail

}  // namespace hasten::rpc
