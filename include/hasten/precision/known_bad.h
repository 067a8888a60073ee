// known_bad: convolutions that libtorch's issues report as slow or wrong below float32, and the notes about them.
//
// The list is data, with PyTorch's issue numbers; nothing is measured. An entry goes when libtorch's oldest supported
// release has it repaired.
#pragma once

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
/// Collective: no. Blocks: no. Throws: nothing.
std::vector<std::string> known_bad(const DeviceFacts& facts, Precision precision, const ConvolutionFacts& convolutions);

}  // namespace hasten::precision
