// Files of torch.save: hasten/files/python/python_file.h, under the name by which programs include it.
#pragma once

#include "hasten/files/python/python_file.h"
