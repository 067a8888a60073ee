// fetch_archive and fetch_file by their names beside datasets; see files/hub/archive.h and fetch_file.h.
#pragma once

#include "hasten/files/hub/archive.h"
#include "hasten/files/hub/fetch_file.h"

namespace hasten::data {

using files::fetch_archive;
using files::fetch_file;
using files::FetchOptions;

}  // namespace hasten::data
