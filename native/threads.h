// Fork-join pool.
#pragma once
