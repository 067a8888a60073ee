// The threads that write saves, and the program's end: it waits for them.
#pragma once

#include <memory>

#include "checkpoint/save/save_job.h"

namespace hasten::checkpoint {

/// Runs the job in a thread of low priority. At the program's exit threads get ten minutes to end.
/// Throws: std::system_error if there is no thread to be had.
void start_writer(std::shared_ptr<SaveJob> job);

}  // namespace hasten::checkpoint
