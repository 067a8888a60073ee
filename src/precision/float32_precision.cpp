// See float32_precision.h. libtorch's setters take enumerators since 2.10 and took words before; both are served.
#include "precision/float32_precision.h"

#include <ATen/Context.h>

#include <array>
#include <string>
#include <type_traits>

namespace hasten::precision {
namespace {

// In the order of libtorch's enumerators.
enum Backend { kGeneric, kCuda, kMkldnn };
enum Operators { kAllOperators, kConv, kRnn, kMatmul };
constexpr std::array<const char*, 3> kBackends = {"generic", "cuda", "mkldnn"};
constexpr std::array<const char*, 4> kOperators = {"all", "conv", "rnn", "matmul"};
constexpr std::array<const char*, 4> kPrecisions = {"none", "ieee", "tf32", "bf16"};

template <class B, class O, class P>
void set_one(void (at::Context::*setter)(B, O, P), Backend backend, Operators operators, Float32Precision precision) {
  const int number = static_cast<int>(precision) + 1;
  if constexpr (std::is_enum_v<B>) {
    (at::globalContext().*setter)(static_cast<B>(backend), static_cast<O>(operators), static_cast<P>(number));
  } else {
    (at::globalContext().*setter)(kBackends[backend], kOperators[operators], kPrecisions[static_cast<size_t>(number)]);
  }
}

template <class P, class B, class O>
std::optional<Float32Precision> one_of(P (at::Context::*getter)(B, O) const, Backend backend, Operators operators) {
  size_t number = 0;
  if constexpr (std::is_enum_v<P>) {
    number = static_cast<size_t>((at::globalContext().*getter)(static_cast<B>(backend), static_cast<O>(operators)));
  } else {
    const std::string word = (at::globalContext().*getter)(kBackends[backend], kOperators[operators]);
    while (number < kPrecisions.size() && word != kPrecisions[number]) ++number;
  }
  if (number == 0 || number >= kPrecisions.size()) return {};
  return static_cast<Float32Precision>(number - 1);
}

void set_operators(Operators operators, const std::optional<Float32Precision>& precision) {
  if (!precision) return;
  if (*precision != Float32Precision::kBf16) set_one(&at::Context::setFloat32Precision, kCuda, operators, *precision);
  set_one(&at::Context::setFloat32Precision, kMkldnn, operators, *precision);
}

}  // namespace

void set_float32_precision(const Float32Options& options) {
  set_operators(kMatmul, options.matmul);
  set_operators(kConv, options.conv);
  set_operators(kRnn, options.rnn);
}

Float32Options float32_precision(bool cuda) {
  const Backend backend = cuda ? kCuda : kMkldnn;
  return {.matmul = one_of(&at::Context::float32Precision, backend, kMatmul),
          .conv = one_of(&at::Context::float32Precision, backend, kConv),
          .rnn = one_of(&at::Context::float32Precision, backend, kRnn)};
}

}  // namespace hasten::precision
