// fetch_archive by its name beside datasets; see files/hub/archive.h.
#pragma once

#include "hasten/files/hub/archive.h"

namespace hasten::data {

using files::fetch_archive;
using files::FetchOptions;

}  // namespace hasten::data
