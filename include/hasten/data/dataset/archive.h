// fetch_archive by its name beside datasets; see files/archive.h.
#pragma once

#include "hasten/files/archive.h"

namespace hasten::data {

using files::fetch_archive;
using files::FetchOptions;

}  // namespace hasten::data
