// Reading a file that fastai's Learner.save has written: NAME.pth.
#pragma once

#include <string>

#include "hasten/learner/learner.h"

namespace hasten::learner {

/// Loads weights, and with LoadOptions::with_opt the optimizer's state and hyper-parameters. If this Learner's
/// optimizer is optim::fastai::adam, they are those of Adam. Otherwise they are those of any other rule of
/// optim/fastai.h.
/// Blocks: on the file. Throws: DataError for another form; UsageError as checkpoint::load_weights, and
/// for another number of parameters or groups.
void load_fastai_file(const Learner& learn, const std::string& path, const LoadOptions& options);

}  // namespace hasten::learner
