// fetch_archive by the name that programs look for beside datasets; see files/archive.h.
#pragma once

#include "hasten/files/archive.h"

namespace hasten::data {

using files::fetch_archive;
using files::FetchOptions;

}  // namespace hasten::data
