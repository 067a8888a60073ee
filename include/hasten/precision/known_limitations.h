// known_limitations: what libtorch does slowly, wrongly or not at all below float32, and the notes about it.
//
// The list of convolutions is data, with PyTorch's issue numbers; nothing is measured. An entry goes when libtorch's
// oldest supported release has it repaired. Operators that a CPU cannot run are tried on this machine.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "hasten/precision/device_facts.h"

namespace hasten::precision {

enum class Precision;

/// The convolutions of a model that the list distinguishes.
struct ConvolutionFacts {
  /// A convolution over images with a dilation or with groups.
  bool dilated_or_grouped = false;
  /// A convolution over volumes whose last stride is above 1.
  bool strided_volumes = false;
};

/// Returns a sentence with the number for each entry of the list that applies to this model, precision and
/// device.
std::vector<std::string> known_limitations(const DeviceFacts& facts, Precision precision,
                                           const ConvolutionFacts& convolutions);

/// Lets autocast on the CPU compute in float32 what fails in `dtype` on this machine: recurrent layers without
/// instructions for it, RReLU in float16, determinants. Holds for the process, inside autocast scopes. Returns the
/// classes of modules that it concerns ("LSTM"). The first call for a dtype tries each of them.
std::vector<std::string> compute_unsupported_in_float32(c10::ScalarType dtype);
/// Returns true if such a call has found that oneDNN's recurrent layers fail.
bool recurrent_layers_need_float32() noexcept;

}  // namespace hasten::precision
