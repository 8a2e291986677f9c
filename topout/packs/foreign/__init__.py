"""What other formats' bytes mean, shared by the sources that read them and the targets that write them.

Nothing here knows of packs: each file is one layout or one question (`signature`: is this a JPEG?).
"""
