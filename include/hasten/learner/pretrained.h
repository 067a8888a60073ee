// Weights that a Learner begins with: from a file, a folder, a hub, or an address.
#pragma once

#include <string>

#include "hasten/core/env.h"

namespace hasten::learner {

/// Returns the local path of weights, for checkpoint::load_weights.
/// - A path that exists: itself.
/// - An http(s) address: the file, fetched once into "files" of the hub's cache. `sha256` is needed, and checked.
/// - "org/name": the folder of that repository's weights from the hub, fetched once.
/// Collective: no; processes of one host may call it at once. Blocks: on the network and the disk. Throws: UsageError
/// for an address without a hash, or a name that is none of these; as files::fetch_file and hub::snapshot.
std::string pretrained_path(const std::string& source, const std::string& sha256 = "",
                            const Environment& environment = Environment::current());

}  // namespace hasten::learner
