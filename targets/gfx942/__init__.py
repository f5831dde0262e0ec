"""The MI300's machine code: code objects, their disassembly, an emulator and a model of their time."""
