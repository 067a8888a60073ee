// Slice: a run of elements of one parameter, with its gradient and state, as the step loops take it.
//
// A step loop (rules.h) updates one slice with one rule. Slices are plain pointers. A whole tensor, the part of it that
// a rank owns, and memory of a mapped file are all stepped alike. The arithmetic is float32 in every case; only loads
// and stores depend on the stored form. Results are equal bit for bit for any cut of a parameter into slices, for every
// instruction set and compiler. The caller decides which slices a rank owns.
#pragma once

#include <array>
#include <cstdint>

namespace hasten::optim::steps {

/// The element type of memory that a loop reads or writes.
enum class Storage : uint8_t { kFloat32, kBFloat16, kFloat16 };

/// How a weight is stored.
enum class WeightForm : uint8_t {
  /// `weight` is float32.
  kFloat32,
  /// `weight` is bfloat16 h and `rest` is int16 l; the float32 bits are (h << 16) + l. Exact.
  kSplit,
  /// `weight` is bfloat16; results are rounded up or down at random, with the right mean.
  kStochastic,
  /// `weight` is bfloat16 and `rest` is bfloat16: the rounding error so far (Kahan's summation).
  kKahan
};

/// The random numbers of kStochastic are a function of these values and of nothing else. So the same element is rounded
/// alike on any number of ranks and for any cut into slices. Generator: Philox 4x32-10.
struct Dither {
  uint64_t seed = 0;
  /// The optimizer's step, counted from 1.
  int64_t step = 0;
  /// The parameter's index in the optimizer.
  uint32_t parameter = 0;
  /// The index within the whole parameter of the slice's first element.
  int64_t first_element = 0;
};

/// The memory regions of a slice may not overlap each other. All have `count` elements.
struct Slice {
  int64_t count = 0;
  WeightForm form = WeightForm::kFloat32;
  void* weight = nullptr;
  /// For kSplit and kKahan; else unused.
  void* rest = nullptr;
  /// If set, receives the new weight, rounded to the nearest: the half-precision parameter of a float32 master.
  void* copy = nullptr;
  Storage copy_storage = Storage::kBFloat16;
  const void* gradient = nullptr;
  Storage gradient_storage = Storage::kFloat32;
  /// The rule's state, in the order that rules.h gives; unused ones may be null.
  std::array<void*, 3> states = {};
  Storage state_storage = Storage::kFloat32;
  /// Factor of gradients as they are read: 1 / (gradient scale) times the clip factor. Negative to maximize.
  double gradient_factor = 1.0;
  Dither dither = {};
};

/// Which compiled variant of the loops runs. The results are the same.
enum class Instructions : uint8_t { kGeneric, kAvx2, kAvx512 };

/// Returns the fastest variant that this processor has.
Instructions best_instructions() noexcept;
/// Returns true if the build and this processor have the variant.
bool has_instructions(Instructions instructions) noexcept;

}  // namespace hasten::optim::steps
