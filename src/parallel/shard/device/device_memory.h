// A device that is out of memory, with words that name the unit. The type stays libtorch's, by which the search for a
// batch size knows it.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <string>

#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten::parallel::shard {

/// Returns what `fn` returns. Throws: c10::OutOfMemoryError with `what`, its bytes and a remedy; exceptions of fn.
template <class Fn>
auto with_words_for_memory(const comm::Group& group, c10::Device device, const std::string& what, int64_t num_bytes,
                           const Fn& fn) {
  try {
    return fn();
  } catch (const c10::OutOfMemoryError& error) {
    throw c10::OutOfMemoryError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
        text(message_prefix({"shard", group.rank(), group.world_size()}), device, " is out of memory for ", what, " (",
             num_bytes,
             " bytes). Take smaller units (ShardOptions::wrap.unit_bytes) or a smaller batch, let parameters rest on "
             "the host (parameter_offload), or use more ranks. ",
             error.what_without_backtrace()));
  }
}

}  // namespace hasten::parallel::shard
