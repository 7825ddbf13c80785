// Errors of Metal's command buffers in lily's words.
#pragma once

#import <Foundation/Foundation.h>

#include "device/metal/progress.h"

namespace lily::metal {

Failure failure_of(NSError* error);

}  // namespace lily::metal
