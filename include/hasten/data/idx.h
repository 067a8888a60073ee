// IDX files, the format that MNIST and its relatives (Fashion-MNIST, EMNIST, KMNIST) are published in.
//
// torch::data::datasets::MNIST reads unpacked files under fixed names only; this reads one file, gzipped or
// not, and leaves datasets and transforms to the user.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace hasten::data {

/// The values of an IDX file of unsigned bytes as a CPU tensor of uint8: [60000, 28, 28] for MNIST's images,
/// [60000] for its labels. A gzipped file is unpacked while it is read. Collective: no. Blocks: while
/// reading. Throws: DataError if the file cannot be opened or unpacked, is no IDX file of unsigned bytes, or
/// is shorter or longer than its header says.
at::Tensor read_idx(const std::string& path);

}  // namespace hasten::data
