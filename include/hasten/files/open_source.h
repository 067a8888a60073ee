// Reading weights of any form: hasten/files/folders/open_source.h, under the name by which programs include it.
#pragma once

#include "hasten/files/folders/open_source.h"
